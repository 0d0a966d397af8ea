"""What Volcano decides, as a pure function of what it knows: who comes in, who goes where, what is said.

Kept apart from `volcano`, which watches and writes: these rules are the part that has to be faithful.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from taskd.testing.kube import resources
from taskd.testing.kube.client import Event, Object
from taskd.testing.kube.nodes import is_ready

GROUP_NAME: Final = "scheduling.k8s.io/group-name"
CONFIGURATION: Final = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
CONFIGURATION_NPU: Final = "ascend.kubectl.kubernetes.io/ascend-npu-configuration"


@dataclass
class World:
    """What the watches said, by uid, and what was written since and not seen yet."""

    nodes: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    groups: dict[str, Object] = field(default_factory=dict)
    queues: dict[str, Object] = field(default_factory=dict)
    bindings: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    # What a pod asks for never changes, and reading it is most of the work of a session.
    requests: dict[str, resources.Amounts] = field(default_factory=dict)

    def table(self, kind: str) -> dict[str, Object]:
        """Return what is known of one kind."""
        return {"Node": self.nodes, "Pod": self.pods, "PodGroup": self.groups, "Queue": self.queues}[kind]

    def take(self, kind: str, event: Event) -> None:
        """Learn from an event of a watch."""
        table = self.table(kind)
        uid = event.object["metadata"]["uid"]
        if event.type == "DELETED":
            table.pop(uid, None)
            self.requests.pop(uid, None)
            self.bindings.pop(uid, None)
            return
        known = table.get(uid)
        # What is older than our own write (whose answer we have) would undo it.
        if known is None or _version(event.object) >= _version(known):
            table[uid] = self._with_binding(uid, event.object) if kind == "Pod" else event.object

    def bound(self, pod: Object, node: str, notes: dict[str, str]) -> None:
        """Take a pod as bound, from the answer to a binding until its watch says so."""
        uid = pod["metadata"]["uid"]
        self.bindings[uid] = (node, notes)
        # A pod that was deleted meanwhile is not brought back.
        if uid in self.pods:
            self.pods[uid] = self._with_binding(uid, pod)

    def _with_binding(self, uid: str, pod: Object) -> Object:
        if uid not in self.bindings:
            return pod
        if pod["spec"].get("nodeName"):
            del self.bindings[uid]
            return pod
        node, notes = self.bindings[uid]
        meta = pod["metadata"]
        return {
            **pod,
            "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **notes}},
            "spec": {**pod["spec"], "nodeName": node},
        }

    def requested(self, pod: Object) -> resources.Amounts:
        """Return what a pod asks for."""
        uid = pod["metadata"]["uid"]
        if uid not in self.requests:
            self.requests[uid] = resources.requested(pod)
        return self.requests[uid]


class Session:
    """One look at everything: which groups come in, which pods go where, what the groups' status says."""

    def __init__(self, world: World, scheduler_name: str, *, places: bool = True) -> None:
        self._world = world
        self._places = places
        self._scheduler_name = scheduler_name
        self.bindings: list[tuple[Object, str, dict[str, str]]] = []
        self.statuses: list[tuple[Object, Object]] = []
        ordered = sorted(world.nodes.values(), key=lambda node: _natural(node["metadata"]["name"]))
        self._nodes = {node["metadata"]["name"]: node for node in ordered if _takes_pods(node)}
        self._free = {
            name: resources.amounts(node["status"].get("allocatable")) for name, node in self._nodes.items()
        }
        self._devices: dict[tuple[str, str], set[int]] = {}
        self._members: dict[tuple[str, str], list[Object]] = {}
        for pod in world.pods.values():
            self._count(pod)

    def run(self) -> None:
        """Go through the groups, oldest first."""
        order = sorted(
            self._world.groups.values(),
            key=lambda group: (group["metadata"]["creationTimestamp"], group["metadata"]["name"]),
        )
        # What was let in and has not taken its place yet is spoken for.
        spoken_for: resources.Amounts = {}
        for group in order:
            if (group.get("status") or {}).get("phase") in {"Inqueue", "Running", "Unknown"}:
                resources.add(spoken_for, self._outstanding(group))
        for group in order:
            if not group["metadata"].get("deletionTimestamp"):
                self._handle(group, spoken_for)

    def _handle(self, group: Object, spoken_for: resources.Amounts) -> None:
        status = group.get("status") or {}
        phase = status.get("phase") or ""
        name = (group.get("spec") or {}).get("queue") or "default"
        known = [found for found in self._world.queues.values() if found["metadata"]["name"] == name]
        if not known:
            # Volcano's cache leaves out a group whose queue it does not know.
            return
        members = self._members_of(group)
        minimum = int((group.get("spec") or {}).get("minMember") or 1)
        trouble: str | None = None
        scheduled = False
        if phase in {"", "Pending"}:
            trouble = self._no_room(group, known[0], spoken_for)
            if trouble is None:
                phase = "Inqueue"
                resources.add(spoken_for, self._outstanding(group))
            else:
                phase = "Pending"
        if phase != "Pending":
            trouble = self._place(members, minimum)
            counts = _counts(members, self.bindings)
            if counts["allocated"] >= minimum:
                done = counts["succeeded"] >= minimum and counts["succeeded"] == len(members)
                phase = "Completed" if done else "Running"
                scheduled = True
            elif counts["running"]:
                phase = "Unknown"
            elif phase != "Inqueue":
                phase = "Pending"
        self._record(group, members, minimum, phase, trouble, scheduled=scheduled)

    def _no_room(self, group: Object, queue_object: Object, spoken_for: resources.Amounts) -> str | None:
        wanted = resources.amounts((group.get("spec") or {}).get("minResources"))
        free: resources.Amounts = {}
        for amounts in self._free.values():
            resources.add(free, amounts)
        resources.add(free, spoken_for, -1)
        # Groups ask for devices and processors, and have no notion of how many pods a node may hold.
        trouble = resources.lacking(wanted, free)
        limit = (queue_object.get("spec") or {}).get("capability")
        if trouble is None and limit:
            left = resources.amounts(limit)
            for other in self._world.groups.values():
                same = (other.get("spec") or {}).get("queue") == queue_object["metadata"]["name"]
                if same and (other.get("status") or {}).get("phase") in {"Inqueue", "Running", "Unknown"}:
                    resources.add(left, resources.amounts(other["spec"].get("minResources")), -1)
            within = {key: value for key, value in wanted.items() if key in left}
            lack = resources.lacking(within, left)
            trouble = lack and f"queue {queue_object['metadata']['name']}: {lack}"
        return trouble

    def _outstanding(self, group: Object) -> resources.Amounts:
        """Return what a group was promised and has not taken yet."""
        left = resources.amounts((group.get("spec") or {}).get("minResources"))
        for pod in self._members_of(group):
            if pod["spec"].get("nodeName"):
                resources.add(left, self._world.requested(pod), -1)
        return {name: value for name, value in left.items() if value > 0}

    def _place(self, members: list[Object], minimum: int) -> str | None:
        """Bind the waiting pods of a gang if enough of them fit; say what is lacking otherwise."""
        waiting = [pod for pod in members if self._waits(pod)]
        placed = [pod for pod in members if pod["spec"].get("nodeName") and _phase(pod) != "Failed"]
        if len(placed) + len(waiting) < minimum or not self._places:
            return None
        plan: list[tuple[Object, str, dict[str, str]]] = []
        trouble = None
        for pod in sorted(waiting, key=_by_index):
            node, why = self._find_node(pod)
            if node is None:
                trouble = trouble or why
                continue
            plan.append((pod, node, self._take(pod, node)))
        if len(placed) + len(plan) < minimum:
            for pod, node, notes in plan:
                self._give_back(pod, node, notes)
            return trouble
        self.bindings += plan
        return trouble

    def _find_node(self, pod: Object) -> tuple[str | None, str]:
        wanted = self._world.requested(pod)
        selector = pod["spec"].get("nodeSelector") or {}
        why = "no node is Ready" if not self._nodes else "no node matches its nodeSelector"
        for name, node in self._nodes.items():
            labels = node["metadata"].get("labels") or {}
            if any(labels.get(key) != value for key, value in selector.items()):
                continue
            lack = resources.lacking(wanted, self._free[name])
            if lack is None:
                return name, ""
            why = lack
        return None, why

    def _take(self, pod: Object, node: str) -> dict[str, str]:
        wanted = self._world.requested(pod)
        resources.add(self._free[node], wanted, -1)
        notes: dict[str, str] = {}
        for name, amount in wanted.items():
            if not _is_npu(name):
                continue
            used = self._devices.setdefault((node, name), set())
            total = int(resources.quantity(self._nodes[node]["status"]["allocatable"][name]))
            mine = [index for index in range(total) if index not in used][: int(amount)]
            used.update(mine)
            notes |= _device_notes(pod, self._nodes[node], name, mine)
        return notes

    def _give_back(self, pod: Object, node: str, notes: dict[str, str]) -> None:
        resources.add(self._free[node], self._world.requested(pod))
        for name, text in notes.items():
            self._devices.get((node, name), set()).difference_update(_indices(text))

    def _count(self, pod: Object) -> None:
        """Take a pod into account: as a member of its group and as a user of its node."""
        meta = pod["metadata"]
        group = (meta.get("annotations") or {}).get(GROUP_NAME)
        if group and pod["spec"].get("schedulerName") == self._scheduler_name:
            self._members.setdefault((meta["namespace"], group), []).append(pod)
        node = pod["spec"].get("nodeName")
        if node not in self._nodes or _phase(pod) in {"Succeeded", "Failed"}:
            return
        wanted = self._world.requested(pod)
        resources.add(self._free[node], wanted, -1)
        for name in wanted:
            if _is_npu(name):
                text = (meta.get("annotations") or {}).get(name, "")
                self._devices.setdefault((node, name), set()).update(_indices(text))

    def _members_of(self, group: Object) -> list[Object]:
        """Return a group's pods, without those that are being deleted."""
        found = self._members.get((group["metadata"]["namespace"], group["metadata"]["name"]), [])
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    @staticmethod
    def _waits(pod: Object) -> bool:
        return not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")

    def _record(
        self,
        group: Object,
        members: list[Object],
        minimum: int,
        phase: str,
        trouble: str | None,
        *,
        scheduled: bool,
    ) -> None:
        """Note the group's new status, if it differs from what it has."""
        old = group.get("status") or {}
        counts = _counts(members, self.bindings)
        conditions = {found["type"]: found for found in old.get("conditions") or []}
        if not scheduled:
            pending = len(members) - counts["allocated"]
            waiting = f"{pending} Pending, " if pending else ""
            message = (
                f"{minimum}/{len(members)} tasks in gang unschedulable: pod group is not ready, "
                f"{waiting}{minimum} minAvailable"
            )
            if pending:
                message += f"; Pending: {pending} Unschedulable"
            if trouble:
                message += f": {trouble}"
            _set(conditions, "Unschedulable", "NotEnoughResources", message)
        elif old.get("phase") != phase and phase == "Running":
            _set(conditions, "Scheduled", "tasks in gang are ready to be scheduled", "")
        new: Object = {"phase": phase, "conditions": list(conditions.values())}
        for name in ("running", "succeeded", "failed"):
            if counts[name] or old.get(name):
                new[name] = counts[name]
        if any(old.get(key) != value for key, value in new.items()):
            self.statuses.append((group, new))


def _counts(members: Iterable[Object], bindings: list[tuple[Object, str, Any]]) -> dict[str, int]:
    counts = {"running": 0, "succeeded": 0, "failed": 0, "allocated": 0}
    bound = {pod["metadata"]["uid"] for pod, _, _ in bindings}
    for pod in members:
        phase = _phase(pod)
        placed = bool(pod["spec"].get("nodeName")) or pod["metadata"]["uid"] in bound
        counts["running"] += phase == "Running"
        counts["succeeded"] += phase == "Succeeded"
        counts["failed"] += phase == "Failed"
        counts["allocated"] += placed and phase != "Failed"
    return counts


def _set(conditions: dict[str, Object], kind: str, reason: str, message: str) -> None:
    """Set a condition; one that says the same already keeps its time."""
    old = conditions.get(kind)
    if old is not None and (old.get("reason"), old.get("message", "")) == (reason, message):
        return
    conditions[kind] = {
        "type": kind,
        "status": "True",
        "reason": reason,
        **({"message": message} if message else {}),
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "transitionID": str(uuid.uuid4()),
    }


def _device_notes(pod: Object, node: Object, resource: str, devices: list[int]) -> dict[str, str]:
    """Return the annotations that the device plugin writes: names of the devices, and their addresses."""
    kind = resource.partition("/")[2]
    address = next(
        (found["address"] for found in node["status"].get("addresses", []) if found["type"] == "InternalIP"),
        "",
    )
    third, fourth = [*address.split("."), "0", "0", "0", "0"][2:4]
    configuration = {
        "pod_name": pod["metadata"]["name"],
        "server_id": address,
        "host_ip": address,
        "super_pod_id": 0,
        "devices": [
            {
                "device_id": str(index),
                "device_ip": f"192.{int(third) % 250}.{fourth}.{index + 1}",
                "super_device_id": str(index),
            }
            for index in devices
        ],
    }
    key = CONFIGURATION_NPU if kind == "npu" else CONFIGURATION
    return {
        resource: ",".join(f"{kind}-{index}" for index in devices),
        key: json.dumps(configuration, separators=(",", ":")),
    }


def _indices(text: str) -> set[int]:
    return {int(name.rpartition("-")[2]) for name in text.split(",") if name.rpartition("-")[2].isdigit()}


def _is_npu(resource: str) -> bool:
    return resource.startswith(("huawei.com/Ascend", "huawei.com/npu")) and not resource.endswith("-core")


def _takes_pods(node: Object) -> bool:
    taints = node["spec"].get("taints") or []
    shut = node["spec"].get("unschedulable") or any(
        taint["effect"] in {"NoSchedule", "NoExecute"} for taint in taints
    )
    return is_ready(node) and not shut and not node["metadata"].get("deletionTimestamp")


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _by_index(pod: Object) -> tuple[int, str]:
    """Order pods as their job counts them, so that ranks and nodes go together in a readable way."""
    notes = pod["metadata"].get("annotations") or {}
    rank = notes.get("hccl/rankIndex", "")
    return (int(rank) if rank.isdigit() else 0, pod["metadata"]["name"])


def _natural(name: str) -> tuple[str, int]:
    """Order names by their number: node-2 before node-10."""
    head, _, number = name.rpartition("-")
    return (head, int(number)) if number.isdigit() else (name, 0)


def _version(item: Object) -> int:
    return int(item["metadata"].get("resourceVersion") or 0)
