"""Hot switching of a pod: a standby in the same place takes over, and the pod that it replaces goes.

The protocol is the reference's: whoever decides marks pods with annotations, and the operator creates,
promotes and removes the standby. Each step can be repeated: the standby's name follows from the pod that it
stands by for, and what was done is read back from the pods themselves. A switch is no restart; it costs
nothing of the limit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from taskd.core.acjob import names
from taskd.core.acjob.actions import Action, AnnotatePod, AssignStandby, CreateBackup, DeletePod
from taskd.core.acjob.job import Slot
from taskd.core.acjob.seen import PodSeen, Roster

_STANDBY: Final = re.compile(r"-hot-[0-9a-f]{6}$")


def backup_name(source: str, source_uid: str) -> str:
    """The name of the pod that stands by for another; switching again and again does not lengthen it."""
    return f"{_STANDBY.sub('', source)}-hot-{source_uid.replace('-', '')[:6]}"


def moves(found: Roster, current: int, ready: Sequence[PodSeen] = ()) -> tuple[Action, ...]:
    """What the marks on the pods ask for; of the pods that are kept ready those are used first."""
    asked: list[Action] = []
    waiting = iter(ready)
    for slot, pod in found.regular.items():
        wish = pod.annotations.get(names.ASK_OPERATOR)
        standby = found.backups.get(pod.name)
        if pod.backup:
            # Its source is gone: it is the regular pod now.
            asked.append(AnnotatePod(pod.name, pod.uid, {names.POD_TYPE: None, names.BACKUP_SOURCE: None}))
        elif pod.deleting:
            continue
        elif standby is None and wish == "create":
            asked.append(_relief(pod, slot, current, next(waiting, None)))
        elif standby is not None and not standby.deleting and wish == "create":
            marks = {names.ASK_OPERATOR: None, names.BACKUP_NEW: standby.name}
            asked.append(AnnotatePod(pod.name, pod.uid, marks))
        elif standby is None and names.BACKUP_NEW in pod.annotations:
            # The standby is gone, whoever removed it: the switch is off.
            asked.append(AnnotatePod(pod.name, pod.uid, {names.HOT_SWITCH: None, names.BACKUP_NEW: None}))
        elif standby is not None and standby.alive and pod.annotations.get(names.ASK_VOLCANO) == "delete":
            asked.append(DeletePod(pod.name, pod.uid, None, "hot switch"))
    known = {pod.name for pod in found.regular.values()}
    for source, standby in found.backups.items():
        if standby.deleting:
            continue
        if standby.annotations.get(names.ASK_OPERATOR) == "delete" or source not in known:
            asked.append(DeletePod(standby.name, standby.uid, 0, "standby no longer wanted"))
    return tuple(asked)


def _relief(pod: PodSeen, slot: Slot, current: int, ready: PodSeen | None) -> Action:
    """A pod to stand by for this one: one that is kept ready, else a new one."""
    if ready is None:
        return CreateBackup(pod.name, pod.uid, slot, current)
    marks = {names.HOT_SWITCH: "true", names.POD_TYPE: names.BACKUP, names.BACKUP_SOURCE: pod.name}
    return AssignStandby(ready.name, ready.uid, slot, current, marks)
