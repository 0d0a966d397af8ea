"""Look at the ranks of a node: who was stopped for too long, and what silent ones say of where they are.

How long is too long is in ``core.hangs``; who of the silent ones is to blame cannot be seen from one node of
several, so that is the manager's to say, from the statements that are collected here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.agent.launches import RankFiles
from taskd.agent.witnesses import Witness, Witnesses, describe_mute
from taskd.core.hangs import HangWatch, Sight
from taskd.core.heartbeat import BeatState
from taskd.core.testimony import Place, Statement
from taskd.kit.pages import Page


@dataclass(frozen=True, slots=True)
class Living:
    """A rank whose process runs; ``stopped_at`` is when a signal stopped it, None while it may go on."""

    pid: int
    page: Page
    files: RankFiles
    stopped_at: float | None
    newcomer: bool


@dataclass(frozen=True, slots=True)
class Hung:
    """A rank that was stopped for too long."""

    why: str
    stack: str
    since: float


class HangSearch:
    """The search on one node, among ranks that can be replaced alone: by a recovery from memory."""

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        """Begin, with the limits that the user has set."""
        self._watch = HangWatch(floor_s, ceiling_s)
        self._witnesses = Witnesses()
        # Where silent ranks are, for the manager; and when a rank that is stopped now will have hung.
        self.testimonies: tuple[Statement, ...] = ()
        self.due_at: float | None = None

    def forget(self, rank: int) -> None:
        """Begin anew with a rank that was replaced."""
        self._watch.forget(rank)

    def look(self, now: float, ranks: Mapping[int, Living]) -> dict[int, Hung]:
        """Look at all ranks; returns those that are to be ended."""
        sights: dict[int, Sight] = {}
        witnesses: dict[int, Witness] = {}
        for rank, living in ranks.items():
            seen = living.page.read()
            if seen is None:
                continue
            if seen.state is not BeatState.READY:
                # All wait for a replacement on its way. It may take its time, but not stand still.
                if living.newcomer:
                    sights[rank] = Sight(-1, now, -1, Place.BETWEEN, now, living.stopped_at)
                continue
            sights[rank] = Sight(
                seen.step,
                seen.changed_ns / 1e9,
                seen.begun,
                seen.place,
                seen.moved_ns / 1e9,
                living.stopped_at,
                seen.took_ns / 1e9,
            )
            files = living.files
            witnesses[rank] = Witness(living.pid, living.page, files.page, files.directory, seen)
        look = self._watch.look(now, sights)
        self.due_at = look.due_at
        silences = {rank: silence for rank, silence in look.silences.items() if rank in witnesses}
        self.testimonies = self._witnesses.hear(now, silences, witnesses)
        hung: dict[int, Hung] = {}
        for rank, why in look.stopped.items():
            living = ranks[rank]
            kept = describe_mute(living.pid, living.files.directory)
            told = f"{why}; what the kernel says of it is in {kept.file}" if kept.file else why
            hung[rank] = Hung(told, kept.stack, living.stopped_at or now)
            self._watch.forget(rank)
        return hung
