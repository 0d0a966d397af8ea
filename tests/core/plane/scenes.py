"""Jobs and events for the tests of the plane's machine, and a driver that keeps the time."""

from dataclasses import dataclass, field

from taskd.core.faults.view import FaultKind, Health, RankFault
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.jobs import PodView
from taskd.core.plane.machine import next_look, step
from taskd.core.plane.policy import Policy, Scheduling, SubHealth, read_policy
from taskd.core.plane.state import (
    Answer,
    Ask,
    DevicesSeen,
    Effect,
    Event,
    Handed,
    JobState,
    Moment,
    Phase,
    PodSeen,
    PodsSeen,
    RecordIncident,
    SendSignal,
    Signal,
    Subscribed,
    Ticked,
    WriteReset,
)

START = 1_800_000_000.0


def policy(strategies: str = "recover", **labels: str) -> Policy:
    given = {"fault-scheduling": "grace", "framework": "pytorch"}
    given |= {key.replace("_", "-"): value for key, value in labels.items() if key != "subHealthyStrategy"}
    if "subHealthyStrategy" in labels:
        given["subHealthyStrategy"] = labels["subHealthyStrategy"]
    return read_policy(given, {"recover-strategy": strategies})


def pods(count: int = 2, **uids: str) -> dict[int, PodSeen]:
    found = {rank: PodSeen(f"job-{rank}", f"uid-{rank}", node=f"node-{rank}") for rank in range(count)}
    for name, uid in uids.items():
        rank = int(name.removeprefix("p"))
        found[rank] = PodSeen(f"job-{rank}", uid)
    return found


def views(count: int = 2) -> dict[int, PodView]:
    """The same pods, as whoever asks the operator has them."""
    return {rank: PodView(pod.name, pod.uid, pod.node) for rank, pod in pods(count).items()}


def broken(rank: int, level: str = "RestartBusiness", kind: FaultKind = FaultKind.NORMAL) -> RankFault:
    return RankFault(rank, kind, level, "80E18401")


@dataclass
class Play:
    """A job's machine with a clock; signals are handed out at once while somebody listens."""

    state: JobState
    now: float = START
    number: int = 0
    effects: list[Effect] = field(default_factory=list)
    last: tuple[Effect, ...] = ()

    @classmethod
    def of(cls, strategies: str = "recover", size: int = 2, **labels: str) -> "Play":
        play = cls(JobState("job-1", policy(strategies, **labels), Shape(size, 8)))
        play.feed(PodsSeen(pods(size)))
        play.feed(Subscribed())
        return play

    def feed(self, event: Event, after_s: float = 0.0) -> tuple[Effect, ...]:
        self.now += after_s
        self.number += 1
        self.state, done = step(self.state, event, Moment(self.now, f"U{self.number}"))
        self.effects.extend(done)
        self.last = done
        for effect in done:
            if isinstance(effect, SendSignal) and self.state.connected:
                self.state, more = step(
                    self.state, Handed(effect.signal), Moment(self.now, f"H{self.number}")
                )
                self.effects.extend(more)
        return done

    def wait(self) -> tuple[Effect, ...]:
        """Let time pass until the machine wants to look at its clock."""
        due = next_look(self.state)
        assert due, f"nothing is awaited in {self.state.phase}"
        return self.feed(Ticked(), max(due - self.now, 0.0))

    def devices(self, *faults: RankFault, health: Health = Health.UNHEALTHY) -> tuple[Effect, ...]:
        return self.feed(DevicesSeen(health if faults else Health.HEALTHY, faults))

    def at(self, phase: Phase) -> bool:
        return self.state.phase is phase

    @property
    def signal(self) -> Signal:
        """The signal that the last event brought."""
        return next(each.signal for each in self.last if isinstance(each, SendSignal))

    @property
    def signals(self) -> list[str]:
        """All signals so far: their kind, or the strategy where they change it."""
        sent = [each.signal for each in self.effects if isinstance(each, SendSignal)]
        return [signal.change.value or signal.kind.value for signal in sent]

    @property
    def answer(self) -> Answer:
        return next(each for each in self.last if isinstance(each, Answer))

    @property
    def asked(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(each.wish.value, each.pods) for each in self.effects if isinstance(each, Ask)]

    @property
    def resets(self) -> list[str]:
        return [each.content.kind.value for each in self.effects if isinstance(each, WriteReset)]

    @property
    def outcome(self) -> str:
        return [each for each in self.effects if isinstance(each, RecordIncident)][-1].outcome


__all__ = ["START", "Play", "Scheduling", "SubHealth", "broken", "pods", "policy", "views"]
