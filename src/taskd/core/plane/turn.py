"""One step of the machine while it is being made: the state so far, and what is to be done.

Outside, a step is a function of state and event. Inside, a chain of rules adds to one result; passing state
and effects through each of them by hand would hide the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from taskd.core.faults.view import FaultKind
from taskd.core.plane.faultlists import as_normal
from taskd.core.plane.names import Action, Change, SignalType
from taskd.core.plane.resetconfig import ResetContent, ResetKind
from taskd.core.plane.state import (
    Ask,
    Effect,
    Episode,
    JobState,
    Moment,
    Phase,
    RecordIncident,
    SendSignal,
    SetLabel,
    Signal,
    Wish,
    WriteReset,
)

T = TypeVar("T", int, Change)


class Turn:
    """A step under way."""

    def __init__(self, state: JobState, moment: Moment) -> None:
        """Begin with the state as it was."""
        self.state = state
        self.now = moment.now
        self.effects: list[Effect] = []
        self._fresh = moment.fresh
        self._named = 0

    def name(self) -> str:
        """Return a name that nothing has had; one step may need more than one."""
        self._named += 1
        return self._fresh if self._named == 1 else f"{self._fresh}-{self._named}"

    @property
    def episode(self) -> Episode:
        """What is under way. Rules that ask for it run only while something is."""
        if self.state.episode is None:
            raise LookupError("nothing is under way")
        return self.state.episode

    def change(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of the state
        """Change the state."""
        self.state = replace(self.state, **changes)

    def edit(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of the episode
        """Change what is under way."""
        self.change(episode=replace(self.episode, **changes))

    def enter(self, phase: Phase, limit_s: float) -> None:
        """Begin to wait for something, so long and no longer."""
        marks = {**self.episode.marks, phase: self.now}
        self.change(phase=phase, deadline=self.now + limit_s, episode=replace(self.episode, marks=marks))

    def do(self, *effects: Effect) -> None:
        """Have something done."""
        self.effects.extend(effects)

    def send(
        self,
        kind: SignalType,
        *actions: Action,
        faults: Mapping[int, FaultKind] | None = None,
        nodes: tuple[int, ...] = (),
        change: Change = Change.NONE,
        extra: str = "",
        timeout_s: int = 0,
        standbys: Mapping[int, str] | None = None,
    ) -> None:
        """Give an order; it is outstanding until another one takes its place or it is answered."""
        uuid = self.episode.uuid
        shunned = self.state.unfit if change is Change.RECOVER else ()
        signal = Signal(
            uuid, kind, actions, faults or {}, change, timeout_s, nodes, extra, standbys or {}, shunned
        )
        self.change(outstanding=signal, handed=False)
        self.do(SendSignal(uuid, signal))

    def settle(self) -> None:
        """Note that the outstanding order was answered."""
        self.change(outstanding=None, handed=False)

    def reset(self, kind: ResetKind, ranks: tuple[int, ...] = (), *, in_place: bool = False) -> None:
        """Have the file of the agents written; a wish to leave that this episode wrote goes with its end."""
        ends = kind in {ResetKind.CLEAR, ResetKind.RESTART_ALL}
        leave = False if ends and self.episode.gentle else None
        self.edit(cleared=ends)
        hurry = self.state.policy.unattended
        self.do(WriteReset(self.episode.uuid, ResetContent(kind, ranks, in_place, leave), hurry))

    def ask(self, wish: Wish, pods: tuple[int, ...], reason: str, *, force: bool = False) -> None:
        """Ask the operator for something, if there is anything to ask for."""
        if not pods and wish is not Wish.RESTART_JOB:
            return
        if wish is Wish.REPLACE and not self.state.policy.unattended:
            self._relieve(pods)
        episode = self.episode
        standbys = {pod: name for pod, name in episode.relief.items() if pod in pods}
        cut = episode.cut if wish is Wish.RESTART_JOB else tuple(pod for pod in pods if pod in episode.cut)
        origin = {pod: uid for pod, uid in episode.origin.items() if pod in pods or pod in cut}
        force = (force or episode.force or self.state.policy.force) and not episode.gentle
        self.do(Ask(episode.uuid, wish, pods, reason, force, origin, cut, episode.avoid, standbys))

    def _relieve(self, pods: tuple[int, ...]) -> None:
        """Give standbys the places of these pods. What was given before holds: it may be done already."""
        ready = self.state.ready
        known = {pod: name for pod, name in self.episode.relief.items() if name in ready}
        free = iter([name for name in ready if name not in known.values()])
        fresh = zip((pod for pod in pods if pod not in known), free, strict=False)
        self.edit(relief={**known, **dict(fresh)})

    def label(self, key: str, value: str | None, pod: int = -1) -> None:
        """Set a label of the job or of a pod."""
        self.do(SetLabel(self.episode.uuid, key, value, pod))

    def tell(self, outcome: str, reason: str = "") -> None:
        """Tell people how far it is."""
        episode = self.episode
        if reason:
            self.edit(reason=reason)
        strategy = "in-place" if episode.placed else episode.ordered.value
        self.do(
            RecordIncident(
                episode.uuid,
                episode.started_at,
                episode.what,
                strategy,
                outcome,
                reason or episode.reason,
                episode.marks,
            )
        )


def replaced(state: JobState, episode: Episode, pod: int) -> bool:
    """Tell whether a pod runs that is not the one which was there when the fault came."""
    seen = state.pods.get(pod)
    return seen is not None and seen.running and seen.uid != episode.origin.get(pod, seen.uid)


def not_replaced(state: JobState, episode: Episode, pods: tuple[int, ...]) -> tuple[int, ...]:
    """The pods of these that are still the old ones, or gone."""
    return tuple(pod for pod in pods if not replaced(state, episode, pod))


def named(state: JobState, episode: Episode) -> dict[int, FaultKind]:
    """The ranks that an order names: all of a pod that leaves, only the faulty of one that stays."""
    if not episode.leaving and not episode.in_place:
        return dict(episode.faults)
    ranks = {rank for pod in episode.leaving for rank in state.shape.ranks_of(pod)}
    ranks |= {rank for rank in episode.faults if state.shape.pod_of(rank) in episode.in_place}
    return as_normal(ranks)


def union(*parts: Iterable[T]) -> tuple[T, ...]:
    """All that is in one of the parts, once and in order."""
    return tuple(sorted({each for part in parts for each in part}))
