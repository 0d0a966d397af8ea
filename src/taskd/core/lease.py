"""When a controller may act: the rules of the lease, without a clock and without a cluster.

A lease says who holds it and for how long it is good after each renewal. Clocks of two machines cannot be
compared, so nobody reads the times that are written in it. Everybody measures by their own clock:

* The holder counts from the moment *before* it sent a renewal that succeeded, and stops acting
  ``renew_deadline_s`` after it.
* A candidate counts from the moment *after* it first saw the lease as it is, and takes it when it has not
  changed for the duration that the holder promised.

The second span begins no earlier than the first and is longer, so they never act both, as long as the two
clocks run at about the same speed. Who writes first decides between candidates: every write names the version
that it replaces.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The three spans, each shorter than the one before it."""

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_deadline_s < self.duration_s:
            raise ValueError(
                f"the lease must last longer than the renewal deadline, and that longer than the pause "
                f"between tries: {self.duration_s:g} s, {self.renew_deadline_s:g} s, {self.retry_s:g} s"
            )

    @property
    def whole_duration_s(self) -> int:
        """The duration as it is written into the lease, which takes whole seconds only."""
        return math.ceil(self.duration_s)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease as it stands in the cluster."""

    holder: str
    duration_s: float
    transitions: int
    version: str


@dataclass(frozen=True, slots=True)
class Sight:
    """A lease (or none) and since when we have seen it unchanged."""

    record: LeaseRecord | None
    since: float


@dataclass(frozen=True, slots=True)
class Take:
    """Try to become the holder."""

    transitions: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again when the lease changes, or at ``until``."""

    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class Tenure:
    """What a renewal that was sent at ``sent_at`` and succeeded gives."""

    sent_at: float
    times: LeaseTimes

    @property
    def act_until(self) -> float:
        """After this moment nothing new may be begun."""
        return self.sent_at + self.times.renew_deadline_s

    @property
    def end(self) -> float:
        """After this moment somebody else may have begun; what was begun must have ended."""
        return self.sent_at + self.times.duration_s


def note_sight(before: Sight | None, record: LeaseRecord | None, now: float) -> Sight:
    """Take in what was just read; the count starts anew only if it is not what was seen before."""
    if before is not None and before.record == record:
        return before
    return Sight(record, now)


def decide_candidate(now: float, me: str, sight: Sight) -> Take | Wait:
    """Say what somebody who does not hold the lease should do."""
    record = sight.record
    if record is None:
        return Take(0, "there is no lease yet")
    if not record.holder:
        return Take(record.transitions + 1, "the last holder has released it")
    if record.holder == me:
        # A write of ours of which no answer came. When it was sent is not known, so it counts for nothing.
        return Take(record.transitions, "it is ours already, by a write that was not answered")
    end = sight.since + record.duration_s
    if now >= end:
        idle = now - sight.since
        return Take(record.transitions + 1, f"{record.holder} has not renewed it for {idle:.1f} s")
    return Wait(end, f"{record.holder} holds it")
