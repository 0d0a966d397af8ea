"""Pods that do not exist yet: one job of many, many jobs of few, one job of very many.

Contestants take turns, round by round, so that what the machine does meanwhile meets all of them.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from recovery.figures import Section
from table import read_load, tell

from kubeop.contestants import OTHERS, OURS, Contestant, Floor, Outcome, bare_turn, operator_turn
from kubeop.ground import Ground

BARE_LIMIT, MANY_LIMIT = 1.3, 1.5
WRITES_LIMIT, MANY_WRITES_LIMIT = 1.05, 2.0
MEMORY_LIMIT_MB = 150.0
SLOW_LIMIT_S = 300.0
STORED = "taskd, jobs stored before"


def measure_one(ground: Ground, *, rounds: int, pods: int, chosen: Sequence[Contestant] = OTHERS) -> Section:
    """One job of a thousand pods."""
    section = Section("one job")
    bare, seen = _rounds(ground, rounds, 1, pods, gang=False, chosen=chosen)
    ours = seen[OURS.name]
    name = f"one job of {pods} pods"
    section.add(f"{name}: bare client, 8 connections", [each.seconds for each in bare], "s")
    section.add(f"{name}: taskd", _seconds(ours), "s")
    section.add(f"{name}: taskd / bare client", _ratios(ours, bare), "", BARE_LIMIT, _flaw(ours))
    section.add(f"{name}: the same in core time, API server and all", _costs(ours, bare), "")
    section.add(f"{name}: writes per pod", [each.writes_per_pod for each in ours], "", WRITES_LIMIT)
    section.add(f"{name}: requests answered 409", [float(each.conflicts) for each in ours], "", 0.0)
    section.add(f"{name}: memory at its peak", [each.peak_mb for each in ours], "MB", MEMORY_LIMIT_MB)
    section.note(f"taskd wrote: {ours[-1].by_kind}")
    _others(section, name, ground, seen, chosen, ours)
    return section


def measure_many(
    ground: Ground, *, rounds: int, jobs: int, pods: int, chosen: Sequence[Contestant] = OTHERS
) -> Section:
    """Many small jobs at once, with gang scheduling: a PodGroup has to be let in before its pods are made."""
    section = Section("many jobs")
    bare, seen = _rounds(ground, rounds, jobs, pods, gang=True, chosen=chosen, stored=True)
    ours, stored = seen[OURS.name], seen[STORED]
    name = f"{jobs} jobs of {pods} pods"
    section.add(
        f"{name}: bare client, the same PodGroups, Services and pods", [each.seconds for each in bare], "s"
    )
    section.add(f"{name}: taskd, from the first job submitted", _seconds(ours), "s")
    # For the bare client the jobs are there already; so they are here.
    section.add(
        f"{name}: taskd, jobs stored before / bare client",
        _ratios(stored, bare),
        "",
        MANY_LIMIT,
        _flaw(stored),
    )
    section.add(f"{name}: the same in core time, API server and all", _costs(stored, bare), "")
    # This time has the jobs' own way into the store in it, which no operator can shorten.
    section.add(
        f"{name}: taskd, from the first job submitted / bare client",
        _ratios(ours, bare),
        "",
        flaw=_flaw(ours),
    )
    section.add(f"{name}: the same in core time", _costs(ours, bare), "")
    whole = [_with_submission(floor) for floor in bare]
    section.add(f"{name}: taskd / bare client that submits the jobs too", _ratios(ours, whole), "")
    section.add(f"{name}: that one in core time", _costs(ours, whole), "")
    section.add(f"{name}: writes per pod", [each.writes_per_pod for each in ours], "", MANY_WRITES_LIMIT)
    section.add(f"{name}: requests answered 409", [float(each.conflicts) for each in ours], "")
    section.add(f"{name}: memory at its peak", [each.peak_mb for each in ours], "MB")
    section.note(f"taskd wrote: {ours[-1].by_kind}")
    _others(section, name, ground, seen, chosen, ours)
    tell(f"many jobs without gang scheduling: {read_load()}")
    plain_bare = bare_turn(ground, jobs, pods, gang=False)
    plain = operator_turn(ground, OURS, jobs, pods, gang=False)
    section.add(f"{name}, no gang scheduling: taskd", [plain.seconds], "s")
    section.add(f"{name}, no gang scheduling: taskd / bare client", [plain.seconds / plain_bare.seconds], "")
    section.add(f"{name}, no gang scheduling: writes per pod", [plain.writes_per_pod], "")
    return section


def measure_growth(ground: Ground, *, sizes: Sequence[int]) -> Section:
    """How time and memory grow with the size of one job."""
    section = Section("growth")
    for pods in sizes:
        tell(f"growth, {pods} pods: {read_load()}")
        bare = bare_turn(ground, 1, pods, gang=False)
        ours = operator_turn(ground, OURS, 1, pods, gang=False, limit_s=SLOW_LIMIT_S)
        name = f"one job of {pods} pods"
        section.add(f"{name}: taskd", [ours.seconds], "s")
        section.add(f"{name}: taskd per pod", [1000 * ours.seconds / pods], "ms")
        section.add(f"{name}: taskd / bare client", [ours.seconds / bare.seconds], "")
        section.add(f"{name}: writes per pod", [ours.writes_per_pod], "")
        section.add(f"{name}: memory at its peak", [ours.peak_mb], "MB")
        if ours.unfinished:
            section.note(ours.unfinished)
    return section


def _rounds(
    ground: Ground,
    rounds: int,
    jobs: int,
    pods: int,
    *,
    gang: bool,
    chosen: Sequence[Contestant],
    stored: bool = False,
) -> tuple[list[Floor], dict[str, list[Outcome]]]:
    bare: list[Floor] = []
    seen: dict[str, list[Outcome]] = {}
    there = [each for each in chosen if each.program in ground.programs]
    for number in range(rounds):
        tell(f"{jobs} x {pods} pods, round {number + 1}: {read_load()}")
        bare.append(bare_turn(ground, jobs, pods, gang=gang))
        tell(f"  bare client: {bare[-1].seconds:.2f} s, {bare[-1].core_s:.1f} s of core time")
        if stored:
            found = operator_turn(ground, OURS, jobs, pods, gang=gang, stored=True)
            seen.setdefault(STORED, []).append(found)
            tell(f"  {STORED}: {found.seconds:.2f} s, {found.core_s:.1f} s of core time {found.unfinished}")
        for who in (OURS, *there):
            if who.slow and number:
                continue
            found = operator_turn(ground, who, jobs, pods, gang=gang, limit_s=SLOW_LIMIT_S)
            seen.setdefault(who.name, []).append(found)
            tell(
                f"  {who.name}: {found.seconds:.2f} s, {found.writes_per_pod:.3f} writes a pod, "
                f"{found.conflicts} conflicts, {found.peak_mb:.0f} MB, {found.core_s:.1f} s of core time "
                f"{found.unfinished}"
            )
    return bare, seen


def _others(
    section: Section,
    name: str,
    ground: Ground,
    seen: dict[str, list[Outcome]],
    chosen: Sequence[Contestant],
    ours: Sequence[Outcome],
) -> None:
    """Compare with the other operators: ours must be the fastest, whatever the others' settings are."""
    mine = statistics.median(_seconds(ours))
    for who in chosen:
        title = f"{name}: {who.name}"
        found = seen.get(who.name)
        if not found:
            section.skip(title, ground.missing.get(who.program, "not in this run"), unit="s")
            section.skip(f"{name}: taskd / {who.program}", "there is nothing to compare with", 1.0)
            continue
        section.add(title, _seconds(found), "s")
        section.add("    its writes per pod", [each.writes_per_pod for each in found], "")
        section.add("    its memory at the peak", [each.peak_mb for each in found], "MB")
        section.add("    taskd / this one", [mine / each.seconds for each in found], "", 1.0)
        if any(each.unfinished for each in found):
            section.note(f"{who.name}: {found[-1].unfinished}")
        section.note(f"{who.name} wrote: {found[-1].by_kind}")


def _seconds(outcomes: Sequence[Outcome]) -> list[float]:
    return [each.seconds for each in outcomes]


def _ratios(ours: Sequence[Outcome], bare: Sequence[Floor]) -> list[float]:
    """Compare turn by turn: the two of a round had the same machine."""
    return [each.seconds / floor.seconds for each, floor in zip(ours, bare, strict=True)]


def _costs(ours: Sequence[Outcome], bare: Sequence[Floor]) -> list[float]:
    """The same of the core time: where cores are what there is too little of, it does not feel neighbours."""
    return [each.core_s / floor.core_s for each, floor in zip(ours, bare, strict=True)]


def _with_submission(floor: Floor) -> Floor:
    """What the bare client needs for jobs and objects together, one after the other."""
    return replace(
        floor,
        seconds=floor.seconds + floor.submitting_s,
        core_s=floor.core_s + floor.submitting_core_s,
    )


def _flaw(outcomes: Sequence[Outcome]) -> str:
    return next((each.unfinished for each in outcomes if each.unfinished), "")
