"""A manager's office: its term, the roster of those who could take over, and its right to decide.

The rules are in ``core.succession``; this keeps the facts that they need: who is connected, who was heard
when, who keeps which roster. A job on one machine has no such thing, and its manager always decides.
"""

from collections.abc import Collection
from dataclasses import replace

from taskd.core.jobstate import Job
from taskd.core.messages import ProxyHello, RosterKept
from taskd.core.succession import (
    Candidate,
    Mandate,
    Roster,
    Term,
    is_majority,
    newborn_mandate,
)
from taskd.manager.config import ManagerConfig, Succession

PUSH_EVERY_S = 1.0
STALE_S = 0.5  # after this process did not run: what comes out of the sockets first was sent before
LOOK_S = 0.05  # a large job has thousands of events a second, and who is there changes slowly


def begin_succession(job: Job, succession: Succession | None) -> Job:
    """Take over from a machine that is lost: its nodes are not waited for, all others are."""
    if succession is None or not succession.lost:
        return job
    lost = frozenset(succession.lost)
    return replace(
        job,
        absent=lost,
        awaited=succession.roster.nodes - lost,
        manager_node=succession.home,
        lost_at=succession.lost_at,
    )


class Office:
    """What one manager knows of its own standing."""

    def __init__(self, config: ManagerConfig, now: float) -> None:
        """Begin the term that the launcher says."""
        self._config = config
        self._since = now
        self._candidates: dict[str, Candidate] = {}
        self._heard: dict[str, float] = {}
        self._brought: dict[str, tuple[Term, int]] = {}
        self._kept: dict[str, tuple[Term, int]] = {}
        self._pushed_at = 0.0
        self._decides = False
        self._deaf_until = now
        self._looked_at = now - LOOK_S
        self._alone_since: float | None = None
        succession = config.succession
        self._mandate: Mandate | None = None
        self._base = (Term(), 0)
        if succession is not None:
            self._base = (succession.roster.term, succession.roster.version)
            self._mandate = newborn_mandate(
                succession.home, succession.term, succession.roster, elected=succession.elected
            )

    @property
    def term(self) -> Term:
        """Return the term; without succession all managers have the same one."""
        return self._mandate.roster.term if self._mandate else Term()

    @property
    def elected(self) -> bool:
        """Tell whether this manager may have decided something already."""
        return self._mandate is None or self._mandate.elected

    def is_replaced(self, hello: ProxyHello, now: float) -> bool:
        """Tell whether a later launcher of that node is here: this one was given up, and comes back."""
        here = self._candidates.get(hello.node)
        fresh = self._is_fresh(hello.node, now)
        return here is not None and hello.standby is not None and fresh and hello.standby.born < here.born

    def _is_fresh(self, node: str, now: float) -> bool:
        heard = self._heard.get(node)
        return heard is not None and now - heard <= self._config.pace.fresh_s

    def welcome(self, hello: ProxyHello, now: float) -> None:
        """Note a proxy that came."""
        self._heard[hello.node] = now
        self._brought[hello.node] = (hello.term, hello.version)
        if hello.standby is not None:
            self._candidates[hello.node] = hello.standby

    def hear(self, node: str, now: float) -> None:
        """Note a sign of life of a node: anything that came from there, and was sent a moment ago."""
        if node and now >= self._deaf_until:
            self._heard[node] = now

    def kept(self, message: RosterKept) -> None:
        """Note which roster a node has on disk."""
        self._kept[message.node] = (message.term, message.version)

    def forget_all(self, now: float) -> None:
        """This process did not run for a while: nobody counts as present until they are heard again.

        What they had sent before they went elsewhere is still in the sockets, and is no sign of life.
        """
        self._heard.clear()
        self._decides = False
        self._deaf_until = now + STALE_S

    def may_decide(self, now: float, connected: Collection[str]) -> bool:
        """Tell whether nobody else can be deciding."""
        if self._mandate is None:
            return True
        if not 0.0 <= now - self._looked_at < LOOK_S:
            present = self._present(now, connected)
            self._mandate = self._mandate.hear(present)
            self._decides, self._looked_at = self._mandate.may_decide(present), now
        return self._decides

    def may_spare(self, missed: Collection[str]) -> bool:
        """Tell whether these can be missed; where more than half are, it is this machine that is cut off."""
        mandate = self._mandate
        return mandate is None or not any(
            is_majority(each, missed) for each in (mandate.roster, mandate.settled)
        )

    def _present(self, now: float, connected: Collection[str]) -> set[str]:
        return {
            node
            for node in connected
            if self._is_fresh(node, now)
            # Who knows a later roster than this manager began with may be a voter of another one.
            and (self.elected or self._brought.get(node, self._base) <= self._base)
        }

    def describe(self, now: float, connected: Collection[str]) -> str:
        """Say why nothing is decided, for a person."""
        if self._mandate is None:
            return ""
        roster = self._mandate.roster
        here = len(roster.nodes & {*self._present(now, connected), self._mandate.home})
        return f"nothing is decided while only {here} of {len(roster.members)} machines are in reach"

    def alone_s(self, now: float, *, decides: bool) -> float:
        """Return for how long this manager has not been allowed to decide."""
        if decides:
            self._alone_since = None
            return 0.0
        if self._alone_since is None:
            self._alone_since = now
        return now - self._alone_since

    def review(self, now: float, job: Job, connected: Collection[str]) -> tuple[Roster | None, list[str]]:
        """Settle or change the roster; returns it with the nodes that should be told of it now."""
        mandate = self._mandate
        if mandate is None or job.plan is None or job.ending is not None:
            return None, []
        before = mandate.roster
        mandate = mandate.settle(self._kept)
        if self.may_decide(now, connected):
            mandate = mandate.amend(self._wanted(now, job, connected))
        self._mandate = mandate
        if mandate.roster == before and now - self._pushed_at < PUSH_EVERY_S:
            return None, []
        self._pushed_at = now
        newest = (mandate.roster.term, mandate.roster.version)
        told = [node for node in connected if node in self._candidates and self._kept.get(node) != newest]
        return mandate.roster, told

    def _wanted(self, now: float, job: Job, connected: Collection[str]) -> dict[str, Candidate]:
        roster = self._mandate.roster if self._mandate else None
        wanted = {member.node: member for member in roster.members} if roster else {}
        wanted.update({node: each for node, each in self._candidates.items() if node in connected})
        return {
            node: each
            for node, each in wanted.items()
            if node in connected or not self._is_gone(now, job, node)
        }

    def _is_gone(self, now: float, job: Job, node: str) -> bool:
        known = job.nodes.get(node)
        if known is not None:
            return not known.usable
        return node in job.absent or now - self._since > self._config.node_lost_s
