"""From changes in the caches to events for the fault centre.

Handlers must return at once, so they only put events aside and say that there are some; jobs are put aside by
UID and read when their turn comes, once for however many of their pods have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from taskd.core.faults import deviceinfo, nodeinfo
from taskd.core.faults.events import (
    DeviceInfoSeen,
    Event,
    JobGone,
    JobSeen,
    NodeInfoSeen,
    NodeSeen,
)
from taskd.core.faults.nodesight import SERIAL
from taskd.core.faults.texts.jobsummary import JobFacts
from taskd.kube.objects import ConfigMap, Json, Node, Pod
from taskd.kube.store import Change
from taskd.plane.sights import JobReader, see_node
from taskd.plane.sources import Sources

log = structlog.get_logger()


@dataclass(slots=True)
class Feed:
    """What has come in and was not taken yet."""

    sources: Sources
    soon: Callable[[], None]
    """Called when there is something to take."""
    serials: dict[str, str] = field(default_factory=dict)
    """The node of each serial number."""
    _events: list[Event] = field(default_factory=list)
    _jobs: set[str] = field(default_factory=set)
    _odd: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _reader: JobReader = field(default_factory=JobReader)

    def connect(self) -> None:
        """Follow the caches from now on."""
        self.sources.devices.add_handler(self._device_info)
        self.sources.hardware.add_handler(self._node_info)
        self.sources.nodes.add_handler(self._node)
        self.sources.jobs.add_handler(self._job)
        self.sources.pods.add_handler(self._pod)

    def look_around(self) -> None:
        """Take what shared caches had before we followed them."""
        for node in self.sources.nodes.store:
            self._node(Change.ADDED, None, node)
        for raw in self.sources.jobs.store:
            self._job(Change.ADDED, None, raw)

    def add(self, *events: Event) -> None:
        """Put events aside that come from elsewhere."""
        self._events += events
        self.soon()

    def take(self) -> tuple[list[Event], list[JobFacts]]:
        """Everything that has come in, jobs first: a fault is told to whoever is there."""
        jobs, self._jobs = self._jobs, set()
        events, self._events = self._events, []
        seen: list[Event] = []
        facts = []
        for uid in sorted(jobs):
            raw = self.sources.jobs.store.by_uid(uid)
            if raw is None:
                self._odd.pop(uid, None)
                self._reader.forget(uid)
                seen.append(JobGone(uid))
                continue
            found = self._reader.see_job(raw, self.sources.pods.owned_by(uid), self._serial_of)
            if found is None:
                continue
            if found.notes != self._odd.get(uid, ()):
                self._odd[uid] = found.notes
                for note in found.notes:
                    log.warning("job_note", job=f"{found.facts.namespace}/{found.facts.name}", note=note)
            seen.append(JobSeen(found.sight))
            facts.append(found.facts)
        return seen + events, facts

    def _serial_of(self, node: str) -> str:
        found = self.sources.nodes.get("", node)
        return "" if found is None else found.metadata.annotations.get(SERIAL, "")

    # ------------------------------------------------------------------------------------------- the handlers

    def _device_info(self, change: Change, old: ConfigMap | None, new: ConfigMap | None) -> None:
        found = new or old
        if found is not None and (node := _node_of(found, deviceinfo.PREFIX)):
            gone = change is Change.DELETED
            self.add(DeviceInfoSeen(node, None if gone else deviceinfo.read_device_info(found.data)))

    def _node_info(self, change: Change, old: ConfigMap | None, new: ConfigMap | None) -> None:
        found = new or old
        if found is not None and (node := _node_of(found, nodeinfo.PREFIX)):
            gone = change is Change.DELETED
            self.add(NodeInfoSeen(node, None if gone else nodeinfo.read_node_info(found.data)))

    def _node(self, change: Change, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is None:
            return
        name = node.metadata.name
        if change is Change.DELETED:
            for serial in [serial for serial, at in self.serials.items() if at == name]:
                del self.serials[serial]
            self.add(NodeSeen(name, None))
            return
        sight = see_node(node)
        if sight.serial:
            self.serials[sight.serial] = name
        self.add(NodeSeen(name, sight))

    def _job(self, _change: Change, old: Json | None, new: Json | None) -> None:
        raw = new or old
        if raw is not None:
            self._dirty([str(raw["metadata"]["uid"])])

    def _pod(self, _change: Change, old: Pod | None, new: Pod | None) -> None:
        self._dirty(pod.metadata.controller_uid for pod in (old, new) if pod is not None)

    def _dirty(self, uids: Iterable[str]) -> None:
        self._jobs.update(uid for uid in uids if uid)
        self.soon()


def _node_of(found: ConfigMap, prefix: str) -> str:
    name = found.metadata.name
    return name.removeprefix(prefix) if name.startswith(prefix) else ""
