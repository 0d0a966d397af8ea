"""Jobs whose news can wait while many others wait for their pods.

To store what is only told of a job costs as much core time as a pod or two. So in a rush it waits, and when
the rush is over the jobs are looked at again, a few at a time: whoever comes meanwhile is served first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

Key = tuple[str, str]
CROWD = 8
CALM = 2
"""With so many jobs left a rush is over; before that, news would take from the last pods of it."""


class Later(Protocol):
    """The work queue, as far as a reconcile needs it."""

    def add(self, key: Key) -> None:
        """Look at the key as soon as possible."""

    def add_after(self, key: Key, delay_s: float) -> None:
        """Look at the key again after so many seconds."""

    @property
    def load(self) -> int:
        """How many jobs wait for a look or have one."""


@dataclass(slots=True)
class Held:
    """Those jobs, in the order in which they came."""

    later: Later
    _keys: dict[Key, None] = field(default_factory=dict)

    @property
    def crowded(self) -> bool:
        """Whether so many jobs are looked at that news should wait."""
        return self.later.load >= CROWD

    def hold(self, key: Key) -> None:
        """Have the job looked at once there is no crowd."""
        self._keys[key] = None

    def drop(self, key: Key) -> None:
        """The job is being looked at."""
        self._keys.pop(key, None)

    def let_go(self) -> None:
        """Once a rush is over, have as many looked at as make no crowd; to be called after every look."""
        load = self.later.load
        for key in list(islice(self._keys, CROWD - load if load <= CALM else 0)):
            del self._keys[key]
            self.later.add(key)
