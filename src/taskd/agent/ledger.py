"""The agent's book of orders: one line before each is carried out.

It decides nothing. It is how a test, or a person after an incident, sees that no order was carried out twice
although managers and proxies came and went.
"""

import contextlib
import json
import os
import time
from pathlib import Path


class Ledger:
    """An append-only file, one JSON object per line."""

    def __init__(self, path: str, node: str, incarnation: str) -> None:
        """Open the book; without a path nothing is written."""
        self._fd = -1
        self._node = node
        self._incarnation = incarnation
        if path:
            with contextlib.suppress(OSError):
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, order: str, generation: int) -> None:
        """Write down that an order is being carried out."""
        if self._fd < 0:
            return
        line = {
            "order": order,
            "generation": generation,
            "node": self._node,
            "incarnation": self._incarnation,
            "stamp": time.time(),
        }
        with contextlib.suppress(OSError):
            os.write(self._fd, json.dumps(line).encode() + b"\n")
