"""Device plugins, played: devices that do not exist are counted, handed out, and reported as faulty.

The part that a real one plays towards the cluster, and no more: a node offers so many devices, each pod that
was placed learns from annotations which are its own, and `mindx-dl-deviceinfo-<node>` says how they are. A
device that is out is neither offered nor handed out.
"""

import http.client
import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from taskd.core.gojson import check_code, compact
from taskd.testing.cluster.real_nodes import RealNodes
from taskd.testing.kube.client import STRATEGIC, ApiError, Object, Watch

RESOURCE: Final = "huawei.com/Ascend910"
REAL: Final = "huawei.com/AscendReal"
CONFIGURATION: Final = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
_MAPS: Final = "/api/v1/namespaces/kube-system/configmaps"
_MILD: Final = frozenset({"NotHandleFault", "SubHealthFault", "PreSeparateNPU"})


@dataclass(frozen=True)
class ChipFault:
    """A fault as a device plugin reports it."""

    chip: int
    code: str
    level: str
    at: float = field(default_factory=time.time)

    @property
    def is_out(self) -> bool:
        """Tell whether the device is not offered any more."""
        return self.level not in _MILD

    def entry(self) -> dict[str, Any]:
        """Return it in the words of the ConfigMap."""
        times = {self.code: {"fault_time": round(self.at * 1000), "fault_level": self.level}}
        return {
            "fault_type": "CardUnhealthy",
            "npu_name": _name(self.chip),
            "large_model_fault_level": self.level,
            "fault_level": self.level,
            "fault_handling": self.level,
            "fault_code": self.code,
            "fault_time_and_level_map": times,
        }


class DevicePlugins:
    """The device plugins of all nodes of a cluster, while it is started; a context manager too."""

    def __init__(self, cluster: RealNodes, per_node: int) -> None:
        self._cluster = cluster
        self._api = cluster.client(user_agent="device-plugin-stand-in")
        self._per_node = per_node
        self._out: dict[str, set[int]] = {}
        self._held: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Offer the devices and begin to hand them out."""
        for node in self._cluster.node_names:
            self.report(node)
        self._watch = self._api.watch("/api/v1/pods")
        self._thread = threading.Thread(target=self._follow, args=(self._watch,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take the devices away."""
        if self._watch is not None:
            self._watch.close()
        if self._thread is not None:
            self._thread.join(10)
        for node in self._cluster.node_names:
            self._offer(node, 0)
            with suppress(ApiError):
                self._api.delete(f"{_MAPS}/mindx-dl-deviceinfo-{node}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def report(self, node: str, *faults: ChipFault) -> None:
        """Say how the devices of a node are: these faults and no others."""
        self._out[node] = {fault.chip for fault in faults if fault.is_out}
        name = f"mindx-dl-deviceinfo-{node}"
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": {"mx-consumer-cim": "true"}},
            "data": device_info(range(self._per_node), faults),
        }
        self._api.apply(f"{_MAPS}/{name}", body)
        self._offer(node, self._per_node - len(self._out[node]))

    def chips_of(self, pod: Object) -> tuple[int, ...]:
        """Return the devices that a pod was given."""
        text = (pod["metadata"].get("annotations") or {}).get(REAL, "")
        return tuple(int(name.rpartition("-")[2]) for name in text.split(",") if name)

    def _offer(self, node: str, count: int) -> None:
        """Offer so many; what is allocatable too, which the kubelet would follow with in ten seconds."""
        amount = {RESOURCE: str(count)}
        status = {"status": {"capacity": amount, "allocatable": amount}}
        self._api.patch(f"/api/v1/nodes/{node}/status", status, kind=STRATEGIC)

    # -------------------------------------------------------------------------------------- handing out

    def _follow(self, watch: Watch) -> None:
        for event in watch:
            if event.type == "SYNCED":
                continue
            pod = event.object
            uid = pod["metadata"]["uid"]
            if event.type == "DELETED" or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
                self._held.pop(uid, None)
            elif pod["spec"].get("nodeName") and uid not in self._held and (count := _wanted(pod)):
                self._hand_out(pod, count)

    def _hand_out(self, pod: Object, count: int) -> None:
        meta, node = pod["metadata"], str(pod["spec"]["nodeName"])
        chips = self.chips_of(pod)
        if not chips:
            taken = {chip for where, held in self._held.values() if where == node for chip in held}
            free = [chip for chip in range(self._per_node) if chip not in taken | self._out.get(node, set())]
            chips = tuple(free[:count])
            notes = _notes(str(meta["name"]), str(self._cluster.layout.node(node).address), chips)
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            # One that was deleted meanwhile needs none.
            with suppress(ApiError, OSError, http.client.HTTPException):
                self._api.patch(path, {"metadata": {"uid": meta["uid"], "annotations": notes}})
        self._held[meta["uid"]] = (node, chips)


def device_info(chips: Iterable[int], faults: Iterable[ChipFault]) -> dict[str, str]:
    """Return the data of `mindx-dl-deviceinfo-<node>`, with its check code."""
    listed = list(faults)
    out = {fault.chip for fault in listed if fault.is_out}
    names = {chip: _name(chip) for chip in chips}
    info = {
        "DeviceList": {
            RESOURCE: ",".join(name for chip, name in names.items() if chip not in out),
            f"{RESOURCE}-Fault": compact([fault.entry() for fault in listed]),
            f"{RESOURCE}-NetworkUnhealthy": "",
            f"{RESOURCE}-Unhealthy": ",".join(names[chip] for chip in sorted(out)),
        },
        "UpdateTime": round(time.time()),
    }
    code = check_code(compact(info))
    return {
        "DeviceInfoCfg": json.dumps(
            {"DeviceInfo": info, "SuperPodID": -2, "ServerIndex": -2, "CheckCode": code}
        )
    }


def _notes(pod: str, host: str, chips: Iterable[int]) -> Mapping[str, str]:
    names = ",".join(map(_name, chips))
    devices = [{"device_id": str(chip), "device_ip": f"192.0.2.{chip}"} for chip in chips]
    told = {"pod_name": pod, "server_id": host, "host_ip": host, "devices": devices}
    return {RESOURCE: names, REAL: names, CONFIGURATION: json.dumps(told)}


def _wanted(pod: Object) -> int:
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return sum(int(each.get(RESOURCE, 0)) for each in limits)


def _name(chip: int) -> str:
    return f"Ascend910-{chip}"
