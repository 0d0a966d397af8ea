"""How many public faults each sender may report: a bucket of tokens per resource.

A sender that repeats itself must not fill the centre. The figures are the reference's: a hundred at once, and
one a second after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

BURST: Final = 100.0
PER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left, and when that was counted."""

    tokens: float
    at: float


def take(
    buckets: Mapping[str, Bucket], resource: str, now: float, burst: float = BURST, per_s: float = PER_S
) -> tuple[dict[str, Bucket], bool]:
    """Take one token of a resource; False where there is none. A clock that was set back gives none."""
    bucket = buckets.get(resource, Bucket(burst, now))
    tokens = min(burst, bucket.tokens + max(0.0, now - bucket.at) * per_s)
    allowed = tokens >= 1
    return {**buckets, resource: Bucket(tokens - 1 if allowed else tokens, now)}, allowed
