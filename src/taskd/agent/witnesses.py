"""Ask silent ranks where they are, and put their answers together for the manager.

A question is a number in the rank's page, the answer a file beside it, so neither a dead proxy nor a full
socket is in the way. A rank that has not answered after some seconds is described by what the kernel says of
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from taskd.core.hangs import Silence
from taskd.core.heartbeat import BeatView
from taskd.core.testimony import Place, Statement
from taskd.kit.pages import Page
from taskd.kit.procinfo import describe_process
from taskd.kit.whereabouts import STACK_FILE, Where, answer_path, read_answer

ROUND_S = 1.0
MUTE_S = 3.0


@dataclass(frozen=True, slots=True)
class Witness:
    """One rank that can be asked."""

    pid: int
    page: Page
    page_file: str
    logs: str
    seen: BeatView


@dataclass(slots=True)
class Witnesses:
    """The questions that are open."""

    _asked: dict[int, int] = field(default_factory=dict)
    _next_round: float = 0.0
    _last: tuple[Statement, ...] = ()

    def hear(
        self, now: float, silences: Mapping[int, Silence], witnesses: Mapping[int, Witness]
    ) -> tuple[Statement, ...]:
        """Return where the ranks are, from the last round of questions; none before there was one."""
        if not silences:
            self._asked, self._last, self._next_round = {}, (), now
            return ()
        answered = self._asked and all(
            rank in witnesses and witnesses[rank].seen.answered >= number
            for rank, number in self._asked.items()
        )
        if now < self._next_round and not answered:
            return self._last
        if self._asked:
            self._last = tuple(
                self._testimony(rank, silence, witnesses[rank]) for rank, silence in silences.items()
            )
            if answered:
                # What has been said holds for a round; then they are asked again.
                self._asked, self._next_round = {}, now + ROUND_S
                return self._last
        self._asked = {rank: each.page.ask() for rank, each in witnesses.items() if rank in silences}
        self._next_round = now + MUTE_S
        return self._last

    def _testimony(self, rank: int, silence: Silence, witness: Witness) -> Statement:
        seen = witness.seen
        answered = rank in self._asked and seen.answered >= self._asked[rank]
        where = read_answer(witness.page_file) if answered else None
        if where is None:
            where = describe_mute(witness.pid, witness.logs)
        return Statement(
            rank=rank,
            step=seen.step + 1 if seen.place is Place.BETWEEN else seen.begun,
            place=seen.place,
            silent_s=silence.silent_s,
            patience_s=silence.patience_s,
            long_s=silence.long_s,
            answered=answered,
            waiting=where.waiting,
            call=where.call,
            line=where.line,
            groups=where.groups,
            stack=where.stack,
            file=where.file,
        )


def describe_mute(pid: int, logs: str) -> Where:
    """Describe a process that does not answer, by what the kernel says, and keep that in its logs."""
    stack = describe_process(pid)
    file = f"{logs}/{STACK_FILE}"
    try:
        Path(file).write_text(
            f"the process does not answer; its threads, as the kernel sees them:\n{stack}", "utf-8"
        )
    except OSError:
        file = ""
    return Where(0, stack=stack, file=file)


def last_words(page_file: str) -> Where | None:
    """Return what a process that ended itself left behind."""
    where = read_answer(page_file)
    return where if where is not None and where.last else None


def clear_answers(page_file: str) -> None:
    """Forget what the predecessor of a rank said."""
    Path(answer_path(page_file)).unlink(missing_ok=True)
