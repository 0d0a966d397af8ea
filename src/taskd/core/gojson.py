"""JSON as Go's encoder writes it, and the check code over such a text.

The reference's programs compute a SHA-256 over a payload that they have decoded into a struct and encoded
again. Whoever wants to write or verify such a code has to produce the same bytes: no blanks, fields in the
order of the struct, keys of maps sorted, and three signs (and two line separators) escaped.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

_ESCAPED: Final = "<>&\u2028\u2029"


def compact(payload: object) -> str:
    """The payload's text; dictionaries keep their order, so the caller sets it."""
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    for sign in _ESCAPED:
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def check_code(text: str) -> str:
    """What readers compare to know that the payload is whole."""
    return hashlib.sha256(text.encode()).hexdigest()
