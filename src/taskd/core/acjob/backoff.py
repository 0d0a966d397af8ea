"""How long a job waits between restarts that do not help.

The first restart is immediate: that is what recovery is for. A job that has to restart again before it got
anywhere would otherwise do so as fast as the API server answers, so it waits, twice as long each time. A job
that ran whole in between begins from zero. Only a program that starts and falls over at once cannot earn that
by a moment's running: its own failures count as a row until it has kept going for a while.
"""

from __future__ import annotations

from typing import Final

from taskd.core.acjob.status import Status, moment

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0
HEALED_S: Final = 60.0
"""A job whose own failure comes so long after its pods were made anew was well in between."""


def row(status: Status, *, own_failure: bool, now: float) -> int:
    """The number of the restart that begins now among those that followed each other without success."""
    last = moment(status.restarted_at) if status.restarted_at else None
    lasted = last is None or now - last - delay_s(status.row) >= HEALED_S
    return 1 if status.stable and (lasted or not own_failure) else status.row + 1


def delay_s(in_a_row: int) -> float:
    """How long the pods of such a restart wait."""
    # The exponent is bounded too: a job may restart ten thousand times.
    return 0.0 if in_a_row <= 1 else min(LONGEST_S, FIRST_S * 2.0 ** min(in_a_row - 2, 16))


def over_at(status: Status) -> float | None:
    """When the wait of the present restart is over; None where there is none."""
    last = moment(status.restarted_at) if status.restarted_at else None
    wait_s = delay_s(status.row)
    return last + wait_s if last is not None and wait_s else None
