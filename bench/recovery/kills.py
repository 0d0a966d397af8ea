"""Figure: kill -9 of a rank, under every contestant in turns, and the floor between them.

A round starts each of them once, lets it train, kills a rank from outside and waits for the full world's next
step. TaskD loses rank 0, a middle one and the last one in each round; the others lose rank 1, which is kind
to those whose rank 0 hosts something. The kills are spread over the step, the same way for all.
"""

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from table import tell

from recovery.contestants import ALL, OTHERS, TASKD, TORCHRUN, Contestant, base_env
from recovery.figures import Section
from recovery.floor import measure_floor
from recovery.phases import Incident, check_sum, describe, incident_of
from recovery.runs import Fault, NotMeasured, Run, new_group, running

VICTIM = 1
SETTLED_STEPS = 25
BETWEEN_STEPS = 12
SPARES = 2
FLOOR_LIMIT = 1.5
TORCHRUN_LIMIT = 1 / 15
OTHER_LIMIT = 1 / 4


@dataclass(slots=True)
class Found:
    """What the rounds brought."""

    faults: defaultdict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    failures: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    pairs: list[tuple[Fault, Incident]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def down_ms(self, name: str) -> list[float]:
        """Return a contestant's downtimes, less one step each."""
        return [fault.down * 1000.0 for fault in self.faults[name]]


def measure_kills(
    *, rounds: int, home: Path, peers: Path, leaks: list[str], chosen: tuple[str, ...] = ()
) -> Section:
    """Kill in turns."""
    section = Section("kills")
    found = Found()
    taking_part: list[Contestant] = []
    for each in ALL:
        why = each.missing(peers)
        if not why and chosen and each.name not in chosen:
            why = "left out by --contestants"
        if why:
            found.missing[each.name] = why
        else:
            taking_part.append(each)
    for number in range(rounds):
        share = (number + 0.5) / rounds
        turn = number % len(taking_part) if taking_part else 0
        for contestant in (*taking_part[turn:], *taking_part[:turn]):
            _one_turn(found, contestant, number, share, home, peers, leaks)
        _floor_turn(found, number, home)
        tell(f"round {number + 1} of {rounds}: {_progress(found)}")
    _report(section, found)
    return section


def _one_turn(
    found: Found, contestant: Contestant, number: int, share: float, home: Path, peers: Path, leaks: list[str]
) -> None:
    name = f"{contestant.name}-{number}"
    group = new_group(home, name, base_env())
    try:
        with running(name, group, lambda it: contestant.launch(it, contestant.python(peers)), leaks) as run:
            run.wait_steps(SETTLED_STEPS)
            if contestant is TASKD:
                _kill_ours(found, run, number, share)
            else:
                found.faults[contestant.name].append(run.kill(VICTIM, share))
    except NotMeasured as error:
        found.failures[contestant.name].append(str(error))
        tell(f"{error}\n{error.last}")


def _kill_ours(found: Found, run: Run, number: int, share: float) -> None:
    faults = []
    for turn, rank in enumerate((0, 1 + number % 2, 3)):
        run.wait_spares(SPARES)
        fault = run.kill(rank, (share + turn / 3) % 1.0)
        faults.append(fault)
        found.faults[TASKD.name].append(fault)
        run.wait_steps(BETWEEN_STEPS, after=fault.back)
    incidents = run.timeline()
    for fault in faults:
        incident = incident_of(fault, incidents)
        if incident is not None:
            found.pairs.append((fault, incident))


def _floor_turn(found: Found, number: int, home: Path) -> None:
    try:
        found.faults["floor"] += measure_floor(home, f"floor-{number}", (0, 1 + number % 2, 3))
    except NotMeasured as error:
        found.failures["floor"].append(str(error))


def _report(section: Section, found: Found) -> None:
    ours = found.down_ms(TASKD.name)
    flaw = _flaw(found, TASKD.name)
    section.add("kill -9 of any rank, TaskD (less one step)", ours, flaw=flaw)
    for rank, label in ((0, "rank 0"), (-1, "a middle rank"), (3, "the last rank")):
        some = [
            fault.down * 1000.0
            for fault in found.faults[TASKD.name]
            if fault.rank == rank or (rank < 0 and fault.rank in {1, 2})
        ]
        section.add(f"  {label}", some)
    again = [float(fault.recomputed) for fault in found.faults[TASKD.name]]
    section.add("  steps computed again", [max(again)] if again else [], "steps", 0.0, flaw)
    floor = found.down_ms("floor")
    # As the experiments with the peers have it, 0.29 to 0.31 s: from the kill to the first step of all.
    whole = [fault.whole * 1000.0 for fault in found.faults["floor"]]
    section.add("floor: a waiting process that is built joins and steps", whole)
    _ratio(section, "TaskD / floor", ours, whole, FLOOR_LIMIT, flaw)
    section.add("  the floor less one step, too", floor)
    _ratio(section, "  TaskD / the floor less one step, too", ours, floor, None, flaw)
    for contestant in (TORCHRUN, *OTHERS):
        _compare(section, found, contestant, ours, flaw)
    check_sum(section, found.pairs, "kills", death=True)
    describe(section, [incident for _, incident in found.pairs], "TaskD, kills")


def _compare(section: Section, found: Found, contestant: Contestant, ours: list[float], flaw: str) -> None:
    name = contestant.name
    limit = TORCHRUN_LIMIT if contestant is TORCHRUN else OTHER_LIMIT
    if name in found.missing:
        section.skip(f"TaskD / {contestant.what}", found.missing[name], limit)
        return
    theirs = found.down_ms(name)
    section.add(f"kill -9 of a rank, {contestant.what}", theirs, flaw=_flaw(found, name))
    _ratio(section, f"TaskD / {contestant.what}", ours, theirs, limit, flaw)
    again = [fault.recomputed for fault in found.faults[name]]
    if again:
        section.note(f"{contestant.what}: {statistics.median(again):g} steps computed again (median)")


def _ratio(
    section: Section, name: str, ours: list[float], theirs: list[float], limit: float | None, flaw: str
) -> None:
    if ours and theirs:
        section.add(name, [statistics.median(ours) / statistics.median(theirs)], "", limit, flaw)
    else:
        section.add(name, [], "", limit, flaw or "nothing to compare with")


def _flaw(found: Found, name: str) -> str:
    failures = found.failures[name]
    if not failures:
        return ""
    return f"{len(failures)} runs failed beside {len(found.faults[name])} faults measured: {failures[0]}"


def _progress(found: Found) -> str:
    parts = []
    for name, faults in found.faults.items():
        if faults:
            parts.append(f"{name} {statistics.median(fault.down for fault in faults):.2f} s")
    return ", ".join(parts)
