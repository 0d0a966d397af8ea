"""What the plane tells by ConfigMap: cluster-info for schedulers, summaries of jobs, and what must be kept.

Texts are made only for what has changed, and the writer compares them, so an event that changes nothing for
a reader costs no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from taskd.core.faults.state import NodeRecord, State
from taskd.core.faults.texts import clusterinfo, jobsummary, kept
from taskd.core.faults.texts.jobsummary import JobFacts, JobStatus
from taskd.core.faults.viewing import in_use
from taskd.core.gojson import compact
from taskd.plane.configmaps import ConfigMaps, Wanted
from taskd.plane.names import CONSUMER_VOLCANO, PlaneNames

ATLAS: Final = {"ring-controller.atlas": "ascend-910"}
log = structlog.get_logger()


@dataclass(slots=True)
class Shards:
    """One kind of entry, spread over several ConfigMaps."""

    prefix: str
    limit: int = clusterinfo.LIMIT_BYTES
    texts: dict[str, str] = field(default_factory=dict)
    placed: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    filled: dict[int, int] = field(default_factory=dict)

    def change(self, changed: Mapping[str, str | None]) -> dict[str, str]:
        """Set or remove entries; returns the ConfigMaps that are others now, with their values."""
        touched = {self.placed[name] for name in changed if name in self.placed}
        crowded = False
        for name, text in changed.items():
            home, old = self.placed.get(name), self.sizes.pop(name, 0)
            if home is not None:
                self.filled[home] -= old
            if text is None:
                self.texts.pop(name, None)
                self.placed.pop(name, None)
                continue
            self.texts[name] = text
            self.sizes[name] = len(text.encode()) + len(name.encode()) + 4
            if home is not None:
                self.filled[home] += self.sizes[name]
            crowded |= home is None or self.filled[home] > self._room
        if crowded:
            touched |= self._spread()
        return {f"{self.prefix}{number}": self._value(number) for number in sorted(touched)}

    @property
    def _room(self) -> int:
        return self.limit - len("{}")

    def _spread(self) -> set[int]:
        """Find a place for what has none; returns the ConfigMaps that this changes."""
        before, self.placed = self.placed, clusterinfo.spread(self.sizes, self.placed, self._room)
        self.filled = {}
        for name, number in self.placed.items():
            self.filled[number] = self.filled.get(number, 0) + self.sizes[name]
        moved = [name for name, number in self.placed.items() if before.get(name) != number]
        return {self.placed[name] for name in moved} | {before[name] for name in moved if name in before}

    def _value(self, number: int) -> str:
        return clusterinfo.gather(
            {name: self.texts[name] for name, at in self.placed.items() if at == number}
        )


@dataclass(slots=True)
class _Told:
    status: JobStatus = JobStatus.PENDING
    ended: int | None = None
    facts: JobFacts | None = None
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Publisher:
    """Turns changes of the centre into wanted ConfigMaps."""

    maps: ConfigMaps
    names: PlaneNames
    devices: Shards = field(default_factory=lambda: Shards(clusterinfo.DEVICE_CM))
    switches: Shards = field(default_factory=lambda: Shards(clusterinfo.SWITCH_CM))
    _nodes: dict[str, str] = field(default_factory=dict)
    _urgent: set[str] = field(default_factory=set)
    _stamps: dict[str, tuple[Any, float]] = field(default_factory=dict)
    _jobs: dict[str, _Told] = field(default_factory=dict)

    # ---------------------------------------------------------------------------------------- cluster info

    def nodes(self, state: State, changed: Iterable[str], now: float) -> None:
        """Publish these nodes."""
        devices: dict[str, str | None] = {}
        switches: dict[str, str | None] = {}
        hardware = False
        for name in changed:
            record = state.nodes.get(name) or NodeRecord(name)
            jobs = [state.jobs[job_id].sight for job_id in state.users.get(name, ()) if job_id in state.jobs]
            used = in_use(record, jobs)
            device = clusterinfo.device_entry(record, used)
            switch = clusterinfo.switch_entry(record, in_use=bool(jobs))
            devices["mindx-dl-deviceinfo-" + name] = None if device is None else compact(device)
            switches["mindx-dl-switchinfo-" + name] = None if switch is None else compact(switch)
            hardware |= self._hardware(record, in_use=bool(jobs), now=now)
        for shards, entries in ((self.devices, devices), (self.switches, switches)):
            news = {name: text for name, text in entries.items() if shards.texts.get(name) != text}
            if news:
                for name, value in shards.change(news).items():
                    self._info(name, value)
        if hardware:
            value, dropped = clusterinfo.gather_within(self._nodes, self._urgent)
            if dropped:
                log.warning("node_faults_left_out", count=dropped, why="they do not fit into one ConfigMap")
            self._info(clusterinfo.NODE_CM, value)

    def _hardware(self, record: NodeRecord, *, in_use: bool, now: float) -> bool:
        """Take a node's hardware; True if its entry is another now."""
        key = "mindx-dl-nodeinfo-" + record.name
        entry = clusterinfo.node_entry(record, in_use=in_use, stamp=0)
        known = self._stamps.get(key)
        if entry is None:
            self._stamps.pop(key, None)
            self._urgent.discard(key)
            return self._nodes.pop(key, None) is not None
        if known is not None and known[0] == entry:
            return False
        self._stamps[key] = entry, now
        self._nodes[key] = compact({**entry, "UpdateTime": round(now * 1000)})
        (self._urgent.add if entry["NodeStatus"] != "Healthy" else self._urgent.discard)(key)
        return True

    def _info(self, name: str, value: str) -> None:
        self.maps.want(self.names.components, name, Wanted({name: value}, CONSUMER_VOLCANO))

    # -------------------------------------------------------------------------------------------- the jobs

    def restore(self, data: Mapping[str, str]) -> None:
        """Go on from a summary that an earlier process has written: a status depends on the one before."""
        job_id, status, ended = (data.get(key, "") for key in ("job_id", "job_status", "deleteTime"))
        if job_id and status in set(JobStatus):
            told = _Told(JobStatus(status), int(ended) if ended.isascii() and ended.isdecimal() else None)
            self._jobs.setdefault(job_id, told)

    def job(self, facts: JobFacts, now: float) -> None:
        """Publish the summary of a job."""
        told = self._jobs.setdefault(facts.job_id, _Told())
        status = jobsummary.job_status(facts, told.status)
        if told.facts == facts and told.status is status and told.names:
            return
        if status in {JobStatus.FAILED, JobStatus.COMPLETE}:
            told.ended = told.ended if told.status is status and told.ended is not None else int(now)
        else:
            told.ended = None
        told.status, told.facts = status, facts
        self._summary(told, deleted=False)

    def job_gone(self, job_id: str, now: float) -> None:
        """Publish that a job is gone; `forget` takes the summary away later."""
        told = self._jobs.get(job_id)
        if told is not None and told.facts is not None:
            told.ended = int(now)
            self._summary(told, deleted=True)

    def forget(self, job_id: str) -> None:
        """Take the summary of a job away."""
        told = self._jobs.pop(job_id, None)
        if told is not None and told.facts is not None:
            for name in told.names:
                if not self._is_anothers(told.facts.namespace, name):
                    self.maps.want(told.facts.namespace, name, Wanted(None))

    def _is_anothers(self, namespace: str, name: str) -> bool:
        """Whether a new job of the same name has taken the ConfigMap over."""
        return any(
            other.facts is not None and other.facts.namespace == namespace and name in other.names
            for other in self._jobs.values()
        )

    def _summary(self, told: _Told, *, deleted: bool) -> None:
        facts = told.facts
        assert facts is not None  # noqa: S101 - set by both callers
        labels = {jobsummary.LABEL: "true", **({} if facts.plain_npu else ATLAS)}
        slices = jobsummary.summary(facts, told.status, told.ended, deleted=deleted)
        names = tuple(part.name for part in slices)
        for name in set(told.names) - set(names):
            self.maps.want(facts.namespace, name, Wanted(None))
        told.names = names
        for part in slices:
            self.maps.want(facts.namespace, part.name, Wanted(part.data, labels))

    # ----------------------------------------------------------------------------------------- what is kept

    def public(self, state: State) -> None:
        """Keep the public faults."""
        labels = {kept.STATISTIC_LABEL: "true"}
        self.maps.want(self.names.shared, kept.STATISTIC_CM, Wanted(kept.statistic(state), labels))
