"""A launcher's part in the succession: it answers the others, asks them, and hosts the manager if it must.

What to do is decided by ``core.succession``. Here are the questions to the other launchers, the file with the
roster, and what this launcher knows of its own manager and proxy.

A pod that is created again has no such file, and another address than the one that the others know. It asks
them by their names (``Neighbourhood``) and says where it is now; from then on they ask it there.
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
    STEADY,
    Answer,
    Candidate,
    Follow,
    Pace,
    Roster,
    Sight,
    TakeOver,
    Term,
    Wait,
    decide_succession,
    find_later,
)
from taskd.kit import jobs
from taskd.kit.papers import NO_PAPERS, JobPapers
from taskd.kit.rosters import read_roster
from taskd.launcher.lookout import Word, ask, close_lookout, open_lookout
from taskd.launcher.neighbourhood import Neighbourhood
from taskd.manager.config import Succession

LOOK_S = 0.25
LOOKOUT_PORT = 9603
SAY_AFTER_S = 5.0
SURVEY_S = 1.0


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

    def rejoin(self, why: str) -> None:
        """Begin again from the start; nothing of the job runs here yet."""
        ...

    def tell(self, what: str) -> None:
        """Tell the person at the console."""
        ...


class Heir:
    """One launcher's place in the succession of its job."""

    def __init__(
        self,
        job: str,
        token: str,
        node: str,
        manager: str,
        household: Household,
        around: Neighbourhood | None = None,
        papers: JobPapers = NO_PAPERS,
        pace: Pace = STEADY,
    ) -> None:
        """Stand for a node whose launcher could host a manager at an address."""
        self._around = around
        self._pace = pace
        self._moved: dict[str, Candidate] = {}
        self._surveyed_at = 0.0
        self._leaving = False
        self.inherits = False
        self._job = job
        self._token = token
        self._papers = papers
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
        self._server, address = await open_lookout(
            host, LOOKOUT_PORT, self._job, self._token, self._answer, self._papers
        )
        self.me = Candidate(self._node, self._own_manager, address, time.time())

    async def look_back(self) -> Follow | None:
        """Ask those whom an earlier launcher of this node knew, or its neighbours, where the manager is now.

        Afterwards ``inherits`` says that it was on this node: those who live wait for it here.
        """
        files = sorted(jobs.job_dir(self._job).glob("roster-*.json"), key=lambda file: file.stat().st_mtime)
        known = read_roster(str(files[-1])) if files else None
        answers = await self._ask_all(known) if known is not None else {}
        if known is None and self._around is not None:
            words = await self._around.ask(self.me)
            known = self._around.latest_roster(words)
            answers = {node: Answer(Sight.ANSWERED, word.term, word.manager) for node, word in words.items()}
        where = find_later(Term(), answers)
        if where is None or (where.manager != self._own_manager and where.term.node != self._node):
            return where
        if known is not None:
            # It was here, and those who live wait for it: what they decided together still holds.
            others = tuple(each for each in known.members if each.node != self._node)
            others = tuple(each for each in others if each.manager != self._own_manager)
            self._roster, self._elected, self.inherits = (
                replace(known, members=(self.me, *others)),
                False,
                True,
            )
            self.term = max(where.term, known.term)
        return None

    def begin(self, run: str) -> None:
        """Host the manager of the job from its start on, or again after this launcher was lost."""
        # By the clock, if nobody knows better: one that is started again is later than it was before.
        number = self.term.number + 1 if self.inherits else int(time.time())
        self.hosts, self.term, self.manager = True, Term(number, self._node), self._own_manager
        if self._roster is None:
            self._roster = Roster(self.term, 0, (self.me,), run)

    async def keep(self) -> None:
        """Watch over the succession for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._leaving:
                continue
            if self.hosts and self._alone:
                await self._look_for_later()
            elif self.hosts:
                await self._look_for_an_older_job()
            elif self._away_since is not None and self._roster is not None:
                await self._look_for_manager(self._away_since)
            elif self._away_since is not None:
                await self._look_around(self._away_since)

    def leave(self) -> None:
        """Say from now on that this launcher goes: nobody needs to find that out by waiting."""
        self._leaving, self.hosts, self._away_since = True, False, None

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
            self.manager = str(note.get("address") or self.manager)
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
        self._roster, self._moved = roster, {}

    def _answer(self, who: Candidate | None) -> Word:
        self._note_moved(who)
        if who is not None and who.node == self._node and who.born > self.me.born:
            # It may have been out of reach while the cluster gave it up.
            self._household.superseded(f"node {self._node} was started anew; all of it here ends")
        if self._leaving:
            return Word("")  # whoever was meant is not here any more
        return Word(self._node, self.term, self.manager, self._roster, self.me)

    def _note_moved(self, who: Candidate | None) -> None:
        """Remember where a node of the roster is now, if its launcher is another one."""
        known = self._roster.member(who.node) if who is not None and self._roster is not None else None
        if who is not None and known is not None and who.node != self._node and who.born > known.born:
            self._moved[who.node] = who

    # --- decisions ---------------------------------------------------------------------------------------

    async def _ask_all(self, roster: Roster) -> dict[str, Answer]:
        others = [member for member in roster.members if member.node != self._node]
        now_at = [self._moved.get(member.node, member) for member in others]
        found = await asyncio.gather(
            *(
                ask(
                    member.lookout,
                    member.node,
                    self._job,
                    self._token,
                    self.me,
                    papers=self._papers,
                    limit_s=self._pace.answer_s,
                )
                for member in now_at
            )
        )
        for answer, theirs in found:
            if answer.sight is Sight.ANSWERED and theirs is not None and theirs.run == roster.run:
                self._adopt(theirs)
        return {
            member.node: replace(answer, reborn=there is not member)
            for member, there, (answer, _) in zip(others, now_at, found, strict=True)
        }

    async def _survey(self) -> dict[str, Word] | None:
        """Ask the neighbours by name, and note who has moved; None if they were asked a moment ago."""
        if self._around is None or time.monotonic() - self._surveyed_at < SURVEY_S:
            return None
        words = await self._around.ask(self.me)
        self._surveyed_at = time.monotonic()
        for word in words.values():
            self._note_moved(word.me)
        return words

    async def _look_for_an_older_job(self) -> None:
        """Find out whether the job has been running without this pod, if nobody could tell at its start."""
        roster = self._roster
        if roster is None or len(roster.members) > 1:
            return
        for word in (await self._survey() or {}).values():
            if word.roster is not None and word.roster.run != roster.run and self._roster == roster:
                self._household.rejoin(f"node {word.node} knows an older run of this job; joining that")
                return

    async def _look_around(self, since: float) -> None:
        """Find the manager for a pod that has never met one: where the neighbours say, else at the leader."""
        words = await self._survey()
        if words is None or self._around is None or self._away_since is None or self._roster is not None:
            return
        answers = {node: Answer(Sight.ANSWERED, word.term, word.manager) for node, word in words.items()}
        where = find_later(Term(), answers) or Follow(self.term, self._around.leader)
        if where.manager != self.manager and where.term >= self.term:
            self.term, self.manager = where.term, where.manager
            self._household.follow(where)
        elif time.monotonic() - since > SAY_AFTER_S:
            self._say_once(await self._around.describe_wait(self.manager))

    def _say_once(self, what: str) -> None:
        if what and what != self._said:
            self._said = what
            self._household.tell(what)

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
        decision = decide_succession(self._node, roster, self.term, away_s, answers, self._pace)
        match decision:
            case Wait():
                if decision.hopeless:
                    await self._survey()
                if decision.hopeless and away_s > SAY_AFTER_S:
                    self._say_once(decision.why)
                self._go_directly(answers.get(self.term.node))
            case Follow():
                self._go_to(decision)
            case TakeOver():
                self._household.tell(decision.why)
                self.hosts, self._alone, self._elected = True, True, False
                self.term, self.manager, self._lost = decision.term, self._own_manager, decision.lost
                self._starts, self._lost_at = 0, since
                self._household.take_over(roster.run)
                self._household.follow(Follow(self.term, self.manager))

    def _go_directly(self, host: Answer | None) -> None:
        """Go to the manager's own address where its launcher answers: only a Service's way may be shut."""
        if host is None or host.sight is not Sight.ANSWERED or host.reborn or host.term != self.term:
            return
        if host.manager not in ("", self.manager):
            self.manager = host.manager
            self._household.follow(Follow(host.term, host.manager))

    def _go_to(self, where: Follow) -> None:
        self.hosts, self.term, self.manager = False, where.term, where.manager
        self._household.tell(f"node {where.term.node} has taken the manager over; going there")
        self._household.follow(where)
