"""What follows from what is known: the faults of touched nodes, the counting, the views of touched jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from taskd.core.faults import hiding
from taskd.core.faults.codes import HCCL_RETRY, LINK_DOWNS
from taskd.core.faults.collecting import SWITCH, collect
from taskd.core.faults.draft import Draft
from taskd.core.faults.frequency import forget, release_at, settle
from taskd.core.faults.levels import Level, severity
from taskd.core.faults.places import WHOLE
from taskd.core.faults.relation import correlate
from taskd.core.faults.state import (
    Fault,
    FaultKey,
    JobRecord,
    LostLink,
    NodeRecord,
    Occurrence,
    Separated,
    Trace,
)
from taskd.core.faults.viewing import see_job


def derive(draft: Draft) -> None:
    """Bring everything that was touched up to date."""
    done: set[str] = set()
    while True:
        for name in sorted(draft.touched - done):
            done.add(name)
            if name in draft.nodes:
                _node(draft, draft.nodes[name], done)
        _count(draft, done)
        if draft.touched <= done:
            break
    for name in done:
        draft.touched_jobs |= draft.users.get(name, frozenset())
    for job_id in sorted(draft.touched_jobs):
        if job_id in draft.jobs:
            _job(draft, draft.jobs[job_id])


# ---------------------------------------------------------------------------------------------- one node


def _node(draft: Draft, record: NodeRecord, done: set[str]) -> None:
    now = draft.now
    wakes: list[float] = []
    record = _let_go(draft, record, wakes)
    jobs = draft.job_records(record.name)
    used: dict[str, int] = {}
    for job in jobs:
        for pod in job.sight.on(record.name):
            used[pod.resource] = used.get(pod.resource, 0) + pod.processes
    faults, seen = collect(record, used, now)
    links = _links(record.links, faults, now)
    wakes += [link.gone + hiding.LINK_MEMORY_S for link in links.values() if link.gone is not None]
    if links.keys() != record.links.keys():
        _look_at_collectives(draft, record.name, jobs, done)
    draft.nodes[record.name] = record = replace(record, links=links, seen=seen)
    around = hiding.Surroundings(
        now,
        jobs,
        record.name,
        record.name in draft.state.stressed,
        lambda job: _link_evidence(draft, job),
    )
    for rule in (hiding.drop_stress, hiding.drop_accompanying):
        faults, more = rule(faults, around)
        wakes += more
    faults, more = hiding.hide_retryable(faults, around, links)
    wakes += more
    for rule in (hiding.hide_in_place, hiding.silence):
        faults, more = rule(faults, around)
        wakes += more
    faults.sort(key=lambda fault: (fault.chip, fault.kind, fault.key))
    before = {fault.key: fault.stamp for fault in record.faults}
    raised = [fault for fault in faults if fault.key not in before or before[fault.key] != fault.stamp]
    draft.nodes[record.name] = replace(record, faults=tuple(faults))
    draft.node_wakes.pop(record.name, None)
    if ahead := [moment for moment in wakes if moment > now]:
        draft.node_wakes[record.name] = min(ahead)
    for fault in raised:
        _raised(draft, record.name, fault, jobs)


def _let_go(draft: Draft, record: NodeRecord, wakes: list[float]) -> NodeRecord:
    """End what has a known end: public faults that have recovered, chips whose time apart is over."""
    over = [key for key, held in record.public.items() if held.until is not None and held.until <= draft.now]
    if over:
        left = {key: held for key, held in record.public.items() if key not in set(over)}
        record = replace(record, public=left)
        draft.public_count -= len(over)
        draft.public = True
    wakes += [held.until for held in record.public.values() if held.until is not None]
    for key, kept in list(record.manual.items()):
        until = release_at(kept, draft.state.separation)
        if until is None:
            continue
        if until > draft.now:
            wakes.append(until)
            continue
        record = replace(record, manual={k: v for k, v in record.manual.items() if k != key})
        draft.history = forget(draft.history, record.name, *key)
        draft.separations = True
        draft.note(f"chip {key[0]} of {record.name}", [f"{key[1]}: no fault for long enough; it is let back"])
    return record


def _links(known: Mapping[FaultKey, LostLink], faults: list[Fault], now: float) -> dict[FaultKey, LostLink]:
    """The links that are down, and those that were a short while ago."""
    found = {fault.key: LostLink(fault) for fault in faults if fault.code in LINK_DOWNS}
    for key, link in known.items():
        gone = now if link.gone is None else link.gone
        if key not in found and now < gone + hiding.LINK_MEMORY_S:
            found[key] = LostLink(link.fault, gone)
    return found


def _link_evidence(draft: Draft, job: JobRecord) -> bool:
    return any(
        link.gone is None or draft.now < link.gone + hiding.LINK_MEMORY_S
        for name in job.sight.nodes
        if name in draft.nodes
        for link in draft.nodes[name].links.values()
    )


def _look_at_collectives(draft: Draft, node: str, jobs: tuple[JobRecord, ...], done: set[str]) -> None:
    """A link that went down, or was forgotten, may change what a failed collective elsewhere means."""
    for job in jobs:
        again = {name for name in job.sight.nodes if name != node and _has(draft, name, HCCL_RETRY)}
        draft.touched |= again
        done -= again


def _raised(draft: Draft, node: str, fault: Fault, jobs: tuple[JobRecord, ...]) -> None:
    """Take note of a fault that was not there before."""
    relations = draft.state.relations
    concerned = [job for job in jobs if any(hiding.concerns(fault, pod) for pod in job.sight.on(node))]
    if concerned and draft.state.separation.enabled and _countable(fault) and isinstance(fault.level, Level):
        job_id = concerned[0].sight.job_id
        seen = Occurrence(job_id, node, fault.chip, fault.name, fault.code, fault.level, draft.now)
        draft.history[fault.code] = (*draft.history.get(fault.code, ()), seen)
    for job in concerned:
        job_id = job.sight.job_id
        draft.news.add(job_id)
        if relations.is_related(fault.code) or relations.is_trigger(fault.code):
            pods = frozenset(pod.uid for pod in job.sight.on(node))
            trace = Trace(node, fault.code, fault.began, fault.kind == SWITCH, pods)
            current = draft.jobs[job_id]
            draft.jobs[job_id] = replace(current, traces=(*current.traces, trace))


def _has(draft: Draft, name: str, code: str) -> bool:
    record = draft.nodes.get(name)
    return record is not None and any(fault.code == code for fault in record.faults)


def _countable(fault: Fault) -> bool:
    return (
        fault.chip != WHOLE
        and bool(fault.code)
        and isinstance(fault.level, Level)
        and severity(fault.level) > severity(Level.SUB_HEALTH)
        and fault.level is not Level.MANUALLY_SEPARATE
    )


# ---------------------------------------------------------------------------------------------- counting


def _count(draft: Draft, done: set[str]) -> None:
    """Count what has come back, and set apart what came back too often."""
    policy = draft.state.separation
    if not policy.enabled:
        if draft.state.wake is not None:
            draft.state = replace(draft.state, wake=None)
        return
    settled = settle(draft.history, policy, draft.now)
    draft.history = settled.history
    draft.state = replace(draft.state, wake=settled.wake)
    for seen in settled.separate:
        record = draft.node(seen.node)
        kept = Separated(seen.name, seen.level, draft.now)
        draft.put(replace(record, manual={**record.manual, (seen.chip, seen.code): kept}))
        done.discard(seen.node)
        draft.separations = True
        text = f"{seen.code} came {policy.threshold} times in {policy.window_s / 3600:g} h; it is kept apart"
        draft.note(f"chip {seen.chip} of {seen.node}", [text])


# ----------------------------------------------------------------------------------------------- one job


def _job(draft: Draft, job: JobRecord) -> None:
    present = {
        (name, fault.code)
        for name in job.sight.nodes
        if name in draft.nodes
        for fault in draft.nodes[name].faults
        if fault.code in draft.state.relations.windows
    }
    found = correlate(job.traces, job.marks, job.sight, present, draft.state.relations, draft.now)
    draft.job_wakes.pop(job.sight.job_id, None)
    if found.wake is not None:
        draft.job_wakes[job.sight.job_id] = found.wake
    job = replace(job, traces=found.traces, marks=found.marks)
    draft.jobs[job.sight.job_id] = replace(job, view=see_job(job, draft.nodes))
