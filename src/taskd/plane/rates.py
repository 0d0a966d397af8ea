"""How many calls somebody may make: a bucket for each, so that one who storms takes nothing from others.

Who calls for a job that exists is that job; managers may share an address, behind a proxy even all of them.
"""

from __future__ import annotations

import time

PER_S = 1000.0
BURST = 1000.0
MAX_CALLERS = 20_000


class Rates:
    """The buckets of all who called lately."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> bool:
        """Tell whether somebody may make one more call now."""
        now = time.monotonic()
        left, at = self._buckets.pop(who, (BURST, now))
        left = min(BURST, left + (now - at) * PER_S)
        # Put back at the end, so that the first is the one that was silent the longest.
        self._buckets[who] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._buckets) > MAX_CALLERS:
            del self._buckets[next(iter(self._buckets))]
        return left >= 1.0
