"""Each event's change to what is known; what follows from it is derived afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from taskd.core.faults.deviceinfo import Chips, DeviceInfo, Switch
from taskd.core.faults.draft import Draft
from taskd.core.faults.events import PolicySeen, SeparationsSeen
from taskd.core.faults.frequency import forget
from taskd.core.faults.nodeinfo import Hardware
from taskd.core.faults.nodesight import GONE, NodeSight
from taskd.core.faults.places import JobSight
from taskd.core.faults.public import Assertion, PublicFault, PublicReport
from taskd.core.faults.reading import Refused
from taskd.core.faults.state import HeldPublic, JobRecord, PublicKey, SeparatedKey
from taskd.core.faults.viewing import healthy

SHORTEST_S: Final = 5.0
"""A public fault stays this long, so that whoever looks now and then has seen it; as long does a recovery
that came first wait for its fault."""
MOST_PUBLIC: Final = 50_000


def device_info(draft: Draft, node: str, info: DeviceInfo | None) -> None:
    """Take a node's device ConfigMap, part by part; a part that is refused stays as it was."""
    record = draft.node(node)
    if info is None:
        draft.put(replace(record, chips=None, switch=None, separated=()))
        return
    about = f"device info of {node}"
    match info.chips:
        case Chips():
            record = replace(record, chips=info.chips)
            draft.note(about, info.chips.notes)
        case Refused(reason):
            draft.refuse(about, reason)
        case None:
            draft.refuse(about, "there is no DeviceInfoCfg")
    match info.switch:
        case Switch():
            record = replace(record, switch=info.switch)
            draft.note(about, info.switch.notes)
        case Refused(reason):
            draft.refuse(about, reason)
        case None:
            record = replace(record, switch=None)
    match info.separated:
        case tuple():
            record = replace(record, separated=info.separated)
        case Refused(reason):
            draft.refuse(about, reason)
        case None:
            record = replace(record, separated=())
    draft.put(record)


def node_info(draft: Draft, node: str, info: Hardware | Refused | None) -> None:
    """Take a node's hardware ConfigMap."""
    if isinstance(info, Refused):
        draft.refuse(f"node info of {node}", info.reason)
        return
    if info is not None:
        draft.note(f"node info of {node}", info.notes)
    draft.put(replace(draft.node(node), hardware=info))


def node(draft: Draft, name: str, sight: NodeSight | None) -> None:
    """Take a node. One that is gone is a fault for as long as a job has a pod there."""
    record = draft.node(name)
    if sight is None:
        sight = GONE if draft.users.get(name) else None
    if sight != record.sight:
        draft.put(replace(record, sight=sight))


def job(draft: Draft, sight: JobSight) -> None:
    """Take a job; the nodes that it has or had are looked at again, because what is used has changed."""
    old = draft.jobs.get(sight.job_id)
    if old is not None and old.sight == sight:
        return
    had = old.sight.nodes if old is not None else frozenset()
    for name in had - sight.nodes:
        _leave(draft, name, sight.job_id)
    for name in sight.nodes - had:
        draft.users[name] = draft.users.get(name, frozenset()) | {sight.job_id}
    if old is None:
        draft.jobs[sight.job_id] = JobRecord(sight, healthy(sight.job_id))
    else:
        draft.jobs[sight.job_id] = replace(old, sight=sight)
    draft.touch(sight.nodes if old is None else sight.differs_on(old.sight))
    draft.touched_jobs.add(sight.job_id)


def job_gone(draft: Draft, job_id: str) -> None:
    """Forget a job."""
    old = draft.jobs.pop(job_id, None)
    if old is None:
        return
    for name in old.sight.nodes:
        _leave(draft, name, job_id)
    draft.touch(old.sight.nodes)
    draft.job_wakes.pop(job_id, None)
    draft.gone.append(job_id)


def _leave(draft: Draft, name: str, job_id: str) -> None:
    left = draft.users.get(name, frozenset()) - {job_id}
    if left:
        draft.users[name] = left
        return
    draft.users.pop(name, None)
    record = draft.nodes.get(name)
    if record is not None and record.sight is GONE:
        draft.put(replace(record, sight=None))


# ------------------------------------------------------------------------------------------- public faults


def public(draft: Draft, report: PublicReport) -> None:
    """Take a message of an outside sender."""
    for text in report.left_out:
        draft.refuse("public fault", text)
    for fault in report.faults:
        key = fault.resource, fault.fault_id
        for name, chips in fault.influence:
            if fault.assertion is Assertion.RECOVER:
                _recover(draft, name, key)
            else:
                _occur(draft, name, key, fault, chips)


def _occur(draft: Draft, name: str, key: PublicKey, fault: PublicFault, chips: tuple[int, ...]) -> None:
    held = draft.node(name).public.get(key)
    if held is None and draft.public_count >= MOST_PUBLIC:
        draft.refuse(f"public fault {key[1]} of {key[0]}", f"{MOST_PUBLIC} public faults are known already")
        return
    early = draft.early.pop((name, key), None) is not None
    added = draft.now if held is None or held.until is not None else held.added
    short = early or fault.assertion is Assertion.ONCE
    new = HeldPublic(fault, chips, added, draft.now + SHORTEST_S if short else None)
    if new != held:
        draft.hold_public(name, key, new)


def _recover(draft: Draft, name: str, key: PublicKey) -> None:
    held = draft.node(name).public.get(key)
    if held is None:
        draft.early[name, key] = draft.now + SHORTEST_S
    elif held.until is None or held.until > draft.now:
        until = max(draft.now, held.added + SHORTEST_S)
        draft.hold_public(name, key, replace(held, until=until))


def public_restored(draft: Draft, faults: Mapping[str, Mapping[PublicKey, HeldPublic]]) -> None:
    """Take what was known before, where nobody has said anything newer."""
    for name, kept in faults.items():
        for key, held in kept.items():
            if key not in draft.node(name).public and draft.public_count < MOST_PUBLIC:
                draft.hold_public(name, key, held)


# --------------------------------------------------------------------------------------------- separation


def policy(draft: Draft, event: PolicySeen) -> None:
    """Take what people have set."""
    state = draft.state
    draft.state = replace(
        state,
        separation=event.separation or state.separation,
        relations=event.relations or state.relations,
        table=event.table or state.table,
    )
    if event.relations is not None:
        draft.touched_jobs |= draft.jobs.keys()
    if not draft.state.separation.enabled:
        draft.history = {}
        for record in list(draft.nodes.values()):
            if record.manual:
                draft.separations = True
                draft.put(replace(record, manual={}))
    elif event.separation is not None:
        draft.touch([name for name, record in draft.nodes.items() if record.manual])


def separations(draft: Draft, event: SeparationsSeen) -> None:
    """Honour what a person did to the list of chips kept apart; at the first look, believe the list."""
    if event.restore:
        if not draft.state.separation.enabled:
            draft.separations = bool(event.entries)
            return
        for (name, chip, code), kept in event.entries.items():
            record = draft.node(name)
            draft.put(replace(record, manual={(chip, code): kept, **record.manual}))
        draft.state = replace(draft.state, written=frozenset(event.entries))
        return
    for key in sorted(draft.state.written):
        if key not in event.entries and key[0] not in event.unreadable:
            _release(draft, key, "a person let it back")
    kept_written = frozenset(key for key in draft.state.written if key[0] in event.unreadable)
    draft.state = replace(
        draft.state, written=(draft.state.written & frozenset(event.entries)) | kept_written
    )


def _release(draft: Draft, key: SeparatedKey, why: str) -> None:
    name, chip, code = key
    record = draft.node(name)
    if (chip, code) not in record.manual:
        return
    manual = {other: kept for other, kept in record.manual.items() if other != (chip, code)}
    draft.put(replace(record, manual=manual))
    draft.history = forget(draft.history, name, chip, code)
    draft.separations = True
    draft.note(f"chip {chip} of {name}", [f"{code}: {why}"])
