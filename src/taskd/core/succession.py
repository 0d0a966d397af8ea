"""Who manages a job of several machines when the manager's machine may be lost.

Each launcher could host the manager. The nodes that know of each other are the *roster*; a manager has a
*term*, and of two managers the one of the later term counts. Two rules keep two from deciding at once:

- A manager that takes over decides nothing before more than half of the roster has come to it, and whoever
  has come to a later term does not go back to an earlier one.
- A manager decides nothing while those that it does not hear could be more than half of the roster.

Whoever goes over to another manager has been away from the old one for longer than that one takes anybody for
present who is not (or the old one is known to be dead). So the first has stopped before the second begins.

A roster changes by one node at a time, and only once the last change is kept by so many that nobody can find
more than half of the old one without meeting it. That is what makes any two rosters that may be in use
overlap. Only the first change may be large: nobody but the manager's own node is in the roster before it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

REBORN_S = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How quickly machines miss each other.

    A node says every ``kept_every_s`` that it is there, and is answered; after ``silence_s`` without a word
    it takes its manager for away. A manager takes a node for present up to ``fresh_s`` after it was heard,
    and knows nothing if it did not run for ``stall_s`` itself. So once a node has been away for longer than
    both together (``lease_s``) its old manager does not count it any more, and it may go over to another one.

    A manager's machine that refuses connections is dead (``refused_s``). One whose kernel does not answer has
    ``silent_s`` to come back, one that takes connections and says nothing ``busy_s``: it may have much to do.
    """

    kept_every_s: float = 1.0
    silence_s: float = 5.0
    fresh_s: float = 3.0
    stall_s: float = 2.0
    lease_s: float = 5.0
    refused_s: float = 1.0
    silent_s: float = 6.0
    busy_s: float = 6.0
    answer_s: float = 1.0


STEADY = Pace()
_QUICK = Pace(
    kept_every_s=0.5, silence_s=1.5, fresh_s=1.2, stall_s=0.8, lease_s=2.0, silent_s=2.2, answer_s=0.5
)
_QUICK_AT_S = 1.5


def pace_of(reach_s: float) -> Pace:
    """Return the pace of a job whose machines are missed after so long; 0, or a long time: the steady one."""
    if reach_s <= 0:
        return STEADY
    quick = {each.name: getattr(_QUICK, each.name) for each in fields(Pace)}
    slower = {name: value * max(1.0, reach_s / _QUICK_AT_S) for name, value in quick.items()}
    return Pace(**{name: min(value, getattr(STEADY, name)) for name, value in slower.items()})


@dataclass(frozen=True, slots=True, order=True)
class Term:
    """Whose turn it is. The node tells two apart that were begun at the same time."""

    number: int = 0
    node: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node whose launcher could host the manager, and where its launcher answers questions.

    ``born`` is when that launcher began, by its own clock: of two of one node the later one counts.
    """

    node: str
    manager: str
    lookout: str
    born: float = 0.0


@dataclass(frozen=True, slots=True)
class Roster:
    """The nodes that decide together who manages. ``run`` tells two jobs of one name apart."""

    term: Term
    version: int
    members: tuple[Candidate, ...]
    run: str = ""

    @property
    def nodes(self) -> frozenset[str]:
        """Return the names of the members."""
        return frozenset(member.node for member in self.members)

    def member(self, node: str) -> Candidate | None:
        """Return a member by its name."""
        return next((member for member in self.members if member.node == node), None)


def is_majority(roster: Roster, nodes: Collection[str]) -> bool:
    """Tell whether these are more than half of a roster."""
    return 2 * len(roster.nodes & set(nodes)) > len(roster.members)


# --- a manager's right to decide -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mandate:
    """What a manager may rely on.

    ``settled`` is the last roster that nobody can miss. ``elected`` says that more than half of it came to
    this manager once, or that it follows another one at the same place.
    """

    home: str
    roster: Roster
    settled: Roster
    elected: bool = False

    def may_decide(self, present: Collection[str]) -> bool:
        """Tell whether nobody else can be deciding, given who is heard; the manager's own node always is."""
        here = {*present, self.home}
        if not self.elected:
            return is_majority(self.roster, here) and is_majority(self.settled, here)
        return not any(is_majority(each, each.nodes - here) for each in (self.roster, self.settled))

    def hear(self, present: Collection[str]) -> "Mandate":
        """Note that enough have come, once they have."""
        return self if self.elected or not self.may_decide(present) else replace(self, elected=True)

    def settle(self, kept: Mapping[str, tuple[Term, int]]) -> "Mandate":
        """Take the newest roster for known once no majority of the one before can be without it."""
        newest = (self.roster.term, self.roster.version)
        holders = {node for node, each in kept.items() if each == newest}
        if self.home not in holders or is_majority(self.settled, self.settled.nodes - holders):
            return self
        return replace(self, settled=self.roster)

    def amend(self, wanted: Mapping[str, Candidate]) -> "Mandate":
        """Begin the next change of the roster, if one is wanted and the last one is settled."""
        before = self.roster
        if before != self.settled or not self.elected:
            return self
        members = {member.node: member for member in before.members}
        if before.nodes == {self.home}:
            members = {**members, **wanted}
        elif gone := [node for node in members if node not in wanted and node != self.home]:
            del members[gone[0]]
        elif fresh := [node for node, each in wanted.items() if members.get(node) != each]:
            # Also one whose launcher was started again, at other addresses.
            members[fresh[0]] = wanted[fresh[0]]
        after = tuple(members.values())
        if after == before.members:
            return self
        return replace(self, roster=replace(before, version=before.version + 1, members=after))


def newborn_mandate(home: str, term: Term, roster: Roster, *, elected: bool) -> Mandate:
    """Return the mandate of a manager that begins a term with the roster that its launcher knew."""
    roster = replace(roster, term=term, version=roster.version + 1)
    return Mandate(home, roster, roster if len(roster.members) == 1 else replace(roster, version=0), elected)


# --- what a launcher does when its node has no manager ---------------------------------------------------


class Sight(StrEnum):
    """What became of a question to another launcher; BUSY: its machine took it, and said nothing in time."""

    ANSWERED = "answered"
    REFUSED = "refused"
    SILENT = "silent"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Answer:
    """What another launcher said: the latest term that it knows, and where that manager is.

    ``reborn`` means that it is not the launcher that was in the roster: a pod of the same name took its
    place, which a cluster allows only once it has given the old one up.
    """

    sight: Sight
    term: Term = field(default_factory=Term)
    manager: str = ""
    reborn: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing yet. ``hopeless`` means that nothing will come of it unless machines come back."""

    why: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """Go to the manager of a later term."""

    term: Term
    manager: str


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Host the manager from now on; these nodes are not expected any more."""

    term: Term
    lost: tuple[str, ...]
    why: str


def find_later(term: Term, answers: Mapping[str, Answer]) -> Follow | None:
    """Find the latest manager that somebody knows of, if it is later than ours."""
    known = [answer for answer in answers.values() if answer.term > term and answer.manager]
    latest = max(known, key=lambda answer: answer.term, default=None)
    return Follow(latest.term, latest.manager) if latest is not None else None


def decide_succession(
    me: str, roster: Roster, term: Term, away_s: float, answers: Mapping[str, Answer], pace: Pace = STEADY
) -> Wait | Follow | TakeOver:
    """Decide what to do after ``away_s`` without the manager of ``term``, given what the others answered."""
    host = answers.get(term.node, Answer(Sight.SILENT))
    dead = host.sight is Sight.REFUSED or host.reborn
    if host.sight is Sight.ANSWERED and host.term < term and not host.reborn:
        host, dead = (
            Answer(Sight.REFUSED),
            True,
        )  # another launcher at the same place: the one we knew is gone
    later = find_later(term, answers)
    if later is not None and (dead or away_s >= pace.lease_s):
        return later
    if later is not None:
        return Wait(f"node {later.term.node} has taken over; the old manager must have noticed first")
    if host.sight is Sight.ANSWERED and host.reborn and away_s < REBORN_S:
        return Wait(f"node {term.node} is back in another place and will start its manager again")
    if host.sight is Sight.ANSWERED and not host.reborn:
        return Wait(f"the launcher of node {term.node} is there and starts its manager again")
    patience_s = pace.busy_s if host.sight is Sight.BUSY else pace.silent_s
    if away_s < (pace.refused_s if dead else patience_s):
        return Wait(f"the machine of node {term.node} may come back")
    # A launcher that was born again asks us, and counts for its node like any other.
    living = {me, *(node for node, each in answers.items() if each.sight is Sight.ANSWERED)} & roster.nodes
    if not is_majority(roster, living):
        count = f"{len(living)} of {len(roster.members)} machines"
        why = f"the machine of the manager is out of reach, and {count} are not enough to go on without it"
        return Wait(why, hopeless=True)
    for member in roster.members:
        if member.node == me:
            number = 1 + max(
                term.number, roster.term.number, *(each.term.number for each in answers.values())
            )
            lost = tuple(sorted(roster.nodes - living))
            what = "is gone" if dead else f"has been silent for {away_s:.0f} s"
            why = f"the machine of the manager (node {term.node}) {what}; this one takes over"
            return TakeOver(Term(number, me), lost, why)
        if member.node in living and member.node != term.node:
            return Wait(f"node {member.node} comes first and takes over")
    return Wait("this node is not in the roster yet")
