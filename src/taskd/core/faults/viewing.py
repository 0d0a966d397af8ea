"""The view of one job, from the faults of its nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from taskd.core.faults.hiding import concerns
from taskd.core.faults.levels import Effect, Level, NodeLevel, SwitchLevel, effect_of, health_of
from taskd.core.faults.places import JobSight, PodPlace
from taskd.core.faults.policy import Strategy
from taskd.core.faults.state import Fault, JobRecord, NodeRecord
from taskd.core.faults.view import DeviceFault, FaultKind, Health, JobFaults, NodeFaults, RankFault


def healthy(job_id: str) -> JobFaults:
    """The view of a job without faults."""
    return JobFaults(job_id, Health.HEALTHY, (), ())


def see_job(record: JobRecord, nodes: Mapping[str, NodeRecord]) -> JobFaults:
    """What is told of the job."""
    job = record.sight
    shown: list[NodeFaults] = []
    ranks: set[RankFault] = set()
    effects = {_effect_of_mark(record.marks[pod.uid]) for pod in job.pods if pod.uid in record.marks}
    for name in job.nodes:
        node = nodes.get(name)
        if node is None or not node.faults:
            continue
        pods = job.on(name)
        mine = [fault for fault in node.faults if any(concerns(fault, pod) for pod in pods)]
        if not mine:
            continue
        shown.append(_node(node, mine))
        acted = [fault for fault in mine if job.job_id not in fault.silenced and _counts(fault)]
        effects |= {fault.effect for fault in acted}
        ranks |= set(_ranks(acted, pods))
    ranks |= _marked(record)
    health = _job_health(effects)
    if health is not Health.SUB_HEALTHY:
        # Beside a real fault, or under none, a degraded device asks for nothing of its own.
        ranks = {rank for rank in ranks if not _mild(rank)}
    return JobFaults(
        job.job_id,
        health,
        tuple(sorted(shown, key=lambda node: (_address(node.ip), node.node))),
        tuple(sorted(ranks, key=lambda rank: (rank.rank, rank.kind, rank.code, rank.level))),
    )


def _counts(fault: Fault) -> bool:
    """A chip that is to be reset when it is idle is left alone until the device plugin lists it."""
    return fault.level is not Level.FREE_RESTART or fault.listed


def _ranks(faults: Iterable[Fault], pods: tuple[PodPlace, ...]) -> Iterable[RankFault]:
    for fault in faults:
        if fault.effect not in {Effect.FAULT, Effect.SUB_HEALTH}:
            continue
        for pod in pods:
            if concerns(fault, pod):
                for rank in pod.ranks(fault.chip):
                    yield RankFault(rank, fault.answer, fault.level.value, fault.code)


def _marked(record: JobRecord) -> set[RankFault]:
    """The ranks of pods that faults belonging together have set apart, or degraded."""
    levels = {Strategy.SEPARATE: NodeLevel.SEPARATE, Strategy.SUB_HEALTH: NodeLevel.SUB_HEALTH}
    return {
        RankFault(rank, FaultKind.NORMAL, levels[record.marks[pod.uid]].value, "")
        for pod in record.sight.pods
        if pod.uid in record.marks
        for rank in pod.ranks(-1)
    }


def _effect_of_mark(mark: Strategy) -> Effect:
    return Effect.FAULT if mark is Strategy.SEPARATE else Effect.SUB_HEALTH


def _mild(rank: RankFault) -> bool:
    return rank.level in {Level.SUB_HEALTH, NodeLevel.SUB_HEALTH, SwitchLevel.SUB_HEALTH}


def _job_health(effects: set[Effect]) -> Health:
    if Effect.FAULT in effects:
        return Health.UNHEALTHY
    return Health.SUB_HEALTHY if Effect.SUB_HEALTH in effects else Health.HEALTHY


def _node(record: NodeRecord, faults: list[Fault]) -> NodeFaults:
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.device_id, fault.device_type), []).append(fault)
    sight = record.sight
    worst = max(effect_of(fault.level) for fault in faults)
    return NodeFaults(
        record.name,
        sight.ip if sight else "",
        sight.serial if sight else "",
        health_of(worst),
        tuple(_device(*key, groups[key]) for key in sorted(groups, key=_device_order)),
    )


def _device(device_id: str, device_type: str, faults: list[Fault]) -> DeviceFault:
    levels: dict[str, Fault] = {}
    for fault in sorted(faults, key=lambda fault: (fault.code, fault.effect, fault.level.value)):
        if fault.code:
            levels[fault.code] = fault  # of one code from two sources the worse
    switches = {fault.switch for fault in faults if fault.switch is not None}
    return DeviceFault(
        device_id,
        device_type,
        tuple(levels),
        tuple(fault.level.value for fault in levels.values()),
        health_of(max(fault.effect for fault in faults)),
        tuple(sorted({fault.kind for fault in faults})),
        tuple(sorted({fault.reason for fault in faults if fault.reason})),
        tuple(sorted(switches, key=lambda s: (s.code, s.chip_id, s.port_id, s.time, s.level))),
    )


def _device_order(key: tuple[str, str]) -> tuple[int, str, str]:
    device_id, device_type = key
    number = device_id.removeprefix("-")
    return (int(device_id) if number.isdecimal() else 0), device_id, device_type


def _address(text: str) -> tuple[int, int, str]:
    """A key that sorts addresses by number, and what is none after them."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return 9, 0, text
    return address.version, int(address), text


def in_use(record: NodeRecord, jobs: Iterable[JobSight]) -> frozenset[int] | None:
    """The chips of the node that jobs have; None where a pod does not say which it has, so it may be any."""
    found: set[int] = set()
    for job in jobs:
        for pod in job.on(record.name):
            if not pod.chips:
                return None
            found.update(pod.chips)
    return frozenset(found)
