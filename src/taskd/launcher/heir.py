"""A launcher's part in the succession: it answers the others, asks them, and hosts the manager if it must.

What to do is decided by ``core.succession``. Here are the questions to the other launchers, the file with the
roster, and what this launcher knows of its own manager and proxy.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from taskd.core.succession import (
    Answer,
    Candidate,
    Follow,
    Roster,
    Sight,
    TakeOver,
    Term,
    Wait,
    decide_succession,
    find_later,
)
from taskd.kit import jobs
from taskd.kit.rosters import read_roster
from taskd.launcher.lookout import Word, ask, close_lookout, open_lookout
from taskd.manager.config import Succession

LOOK_S = 0.25
LOOKOUT_PORT = 9603
SAY_AFTER_S = 5.0


class Household(Protocol):
    """What the heir has its launcher do."""

    def follow(self, where: Follow) -> None:
        """Send the proxy to another manager."""
        ...

    def take_over(self, run: str) -> None:
        """Host the manager from now on."""
        ...

    def stand_down(self) -> None:
        """End the manager that this launcher hosts; it has decided nothing."""
        ...

    def superseded(self, why: str) -> None:
        """End everything here: the job goes on elsewhere."""
        ...

    def tell(self, what: str) -> None:
        """Tell the person at the console."""
        ...


class Heir:
    """One launcher's place in the succession of its job."""

    def __init__(self, job: str, token: str, node: str, manager: str, household: Household) -> None:
        """Stand for a node whose launcher could host a manager at an address."""
        self._job = job
        self._token = token
        self._node = node
        self._own_manager = manager
        self._household = household
        self._server: asyncio.Server | None = None
        self._roster: Roster | None = None
        self._starts = 0
        self._elected = True
        self._lost: tuple[str, ...] = ()
        self._lost_at = 0.0
        self._alone = False
        self._away_since: float | None = None
        self._said = ""
        self.me = Candidate(node, manager, "")
        self.hosts = False
        self.term = Term()
        self.manager = ""

    @property
    def roster_file(self) -> str:
        """Return where this node keeps the roster."""
        return str(jobs.job_dir(self._job) / f"roster-{self._node}.json")

    @property
    def undecided(self) -> bool:
        """Tell whether this launcher hosts a manager that may not decide at the moment."""
        return self.hosts and self._alone

    # --- life --------------------------------------------------------------------------------------------

    async def open(self, host: str) -> None:
        """Begin to answer the other launchers."""
        self._server, address = await open_lookout(host, LOOKOUT_PORT, self._job, self._token, self._word)
        self.me = Candidate(self._node, self._own_manager, address)

    async def look_back(self) -> Follow | None:
        """Ask those whom an earlier launcher of this machine knew where the job's manager is by now."""
        files = sorted(jobs.job_dir(self._job).glob("roster-*.json"), key=lambda file: file.stat().st_mtime)
        known = read_roster(str(files[-1])) if files else None
        if known is None:
            return None
        where = find_later(Term(), await self._ask_all(known))
        if where is not None and where.manager == self._own_manager:
            # It was here, and those who live wait for it: what they decided together still holds.
            others = tuple(each for each in known.members if each.manager != self._own_manager)
            self._roster, self._elected = replace(known, members=(self.me, *others)), False
            return None
        return where

    def begin(self, run: str) -> None:
        """Host the manager of the job from its start on, or again after this launcher was lost."""
        # By the clock: a launcher that is started again is later than all that it was before.
        self.hosts, self.term, self.manager = True, Term(int(time.time()), self._node), self._own_manager
        if self._roster is None:
            self._roster = Roster(self.term, 0, (self.me,), run)

    async def keep(self) -> None:
        """Watch over the succession for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.hosts and self._alone:
                await self._look_for_later()
            elif not self.hosts and self._away_since is not None and self._roster is not None:
                await self._look_for_manager(self._away_since)

    async def close(self) -> None:
        """Stop answering, and leave nothing that a later job could mistake for its own."""
        if self._server is not None:
            await close_lookout(self._server)
        with contextlib.suppress(OSError, jobs.JobLookupError):
            Path(self.roster_file).unlink(missing_ok=True)

    # --- what is known -----------------------------------------------------------------------------------

    def succession(self) -> Succession | None:
        """Return what the next process of the manager must know; each one has a term of its own."""
        if self._roster is None:
            return None
        self._starts += 1
        if self._starts > 1:
            self.term = Term(self.term.number + 1, self._node)
        return Succession(self._node, self.term, self._roster, self._elected, self._lost, self._lost_at)

    def on_proxy_note(self, note: Mapping[str, object]) -> None:
        """Hear from the proxy whether the manager is there, and that there is another roster."""
        if note.get("manager") == "joined":
            self.term = max(self.term, msgspec.convert(note["term"], Term))
            self._away_since, self._said = None, ""
        elif note.get("manager") == "away" and self._away_since is None:
            self._away_since = time.monotonic()
        if "roster" in note:
            self._adopt(read_roster(self.roster_file))

    def on_manager_note(self, note: Mapping[str, object]) -> None:
        """Hear from the manager of this machine whether it may decide."""
        if "alone" in note:
            self._alone = bool(note["alone"])
            self._elected = bool(note.get("elected"))

    def _adopt(self, roster: Roster | None) -> None:
        mine = self._roster
        if roster is None or (
            mine is not None and (roster.term, roster.version) <= (mine.term, mine.version)
        ):
            return
        self._roster = roster

    def _word(self) -> Word:
        return Word(self._node, self.term, self.manager, self._roster)

    # --- decisions ---------------------------------------------------------------------------------------

    async def _ask_all(self, roster: Roster) -> dict[str, Answer]:
        others = [member for member in roster.members if member.node != self._node]
        found = await asyncio.gather(
            *(ask(member.lookout, member.node, self._job, self._token) for member in others)
        )
        for answer, theirs in found:
            if answer.sight is Sight.ANSWERED and theirs is not None and theirs.run == roster.run:
                self._adopt(theirs)
        return {member.node: answer for member, (answer, _) in zip(others, found, strict=True)}

    async def _look_for_later(self) -> None:
        """Find out whether another machine has taken over while this one was out of reach."""
        if self._roster is None:
            return
        later = find_later(self.term, await self._ask_all(self._roster))
        if later is None or not self._alone:
            return
        if self._elected:
            self._household.superseded(
                f"node {later.term.node} has taken the job over, for this machine was out of reach. It goes "
                "on there, and all of it here ends; start this launcher again to offer its node as a spare"
            )
        else:
            self._household.stand_down()
            self._go_to(later)

    async def _look_for_manager(self, since: float) -> None:
        roster = self._roster
        if roster is None:
            return
        answers = await self._ask_all(roster)
        if self._away_since is None or self._roster != roster:
            return  # it came back meanwhile, or somebody knows a later roster: ask those
        away_s = time.monotonic() - since
        decision = decide_succession(self._node, roster, self.term, away_s, answers)
        match decision:
            case Wait():
                if decision.hopeless and away_s > SAY_AFTER_S and decision.why != self._said:
                    self._said = decision.why
                    self._household.tell(decision.why)
            case Follow():
                self._go_to(decision)
            case TakeOver():
                self._household.tell(decision.why)
                self.hosts, self._alone, self._elected = True, True, False
                self.term, self.manager, self._lost = decision.term, self._own_manager, decision.lost
                self._starts, self._lost_at = 0, since
                self._household.take_over(roster.run)
                self._household.follow(Follow(self.term, self.manager))

    def _go_to(self, where: Follow) -> None:
        self.hosts, self.term, self.manager = False, where.term, where.manager
        self._household.tell(f"node {where.term.node} has taken the manager over; going there")
        self._household.follow(where)
