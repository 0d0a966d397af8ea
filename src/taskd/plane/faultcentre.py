"""The fault centre's body: feeds it from the caches, wakes it when it asks, tells listeners, publishes.

All that came in one turn of the event loop is taken together in the next, so a list of a thousand nodes is
one step and a single fault waits for nothing. There is no polling: the timer is set to the moment that the
centre names.

Nothing is decided before every cache has its first list and what the last process kept is read again.

::

    centre = FaultCentre(client)
    centre.listen(lambda view: ...)             # each job's JobFaults, whenever it changed
    group.create_task(centre.run())
    await centre.started()
    code, info = centre.send_public(request)    # SendPublicFault
    centre.tell(RetryReported(job_id))          # from the recovery machine
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from taskd.core.faults.centre import next_deadline, observe_all
from taskd.core.faults.events import (
    Changes,
    Event,
    PublicReported,
    PublicRestored,
    SeparationsSeen,
    SeparationsWritten,
    TimePassed,
    together,
)
from taskd.core.faults.isolating import Scope, isolation
from taskd.core.faults.public import Code, PublicRefused, PublicReport, read_public, read_public_config_map
from taskd.core.faults.rate import Bucket, take
from taskd.core.faults.restoring import settle_messages
from taskd.core.faults.state import State
from taskd.core.faults.texts import clusterinfo, jobsummary, kept
from taskd.core.faults.texts.jobsummary import JobFacts
from taskd.core.faults.view import JobFaults
from taskd.core.faults.viewing import healthy
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.objects import ConfigMap
from taskd.kube.resources import CONFIG_MAP
from taskd.kube.store import Change
from taskd.plane.configmaps import ConfigMaps, Wanted
from taskd.plane.feeding import Feed
from taskd.plane.marks import PodLabels
from taskd.plane.names import MANAGED_BY, PlaneNames
from taskd.plane.policies import read_policies
from taskd.plane.publishing import Publisher
from taskd.plane.sources import Sources

LONGEST_SLEEP_S: Final = 60.0
"""The centre's moments are of the wall clock, which may be set; so it is looked at now and then."""
GONE_S: Final = 60.0
"""So long a summary says that its job is gone, before it goes too."""
Listener = Callable[[JobFaults], None]
log = structlog.get_logger()


class FaultCentre:
    """One for the cluster, in the process that leads; `run` until cancelled."""

    def __init__(
        self,
        client: KubeClient,
        names: PlaneNames | None = None,
        *,
        sources: Sources | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.names = names or PlaneNames()
        self.sources = sources or Sources.make(client, self.names)
        self.maps = ConfigMaps(client)
        self.state = State()
        self._client = client
        self._clock = clock
        self._feed = Feed(self.sources, self._soon)
        self._publisher = Publisher(self.maps, self.names)
        self._labels = PodLabels(client)
        self._listeners: list[Listener] = []
        self._node_listeners: list[Callable[[Iterable[str]], None]] = []
        self._gone_listeners: list[Callable[[str], None]] = []
        self._namespaces: dict[str, str] = {}
        self._buckets: Mapping[str, Bucket] = {}
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._farewells: dict[str, asyncio.TimerHandle] = {}
        self._started = asyncio.Event()
        self._summaries: list[ConfigMap] = []

    # ---------------------------------------------------------------------------------------- for the others

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call it with each job's view at each change, until the result is called; it must return at once."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def listen_for_nodes(self, listener: Callable[[Iterable[str]], None]) -> Callable[[], None]:
        """Call it with the names of nodes whose faults changed, until the result is called."""
        self._node_listeners.append(listener)
        return lambda: self._node_listeners.remove(listener)

    def listen_for_ends(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call it with the id of each job that is gone, until the result is called."""
        self._gone_listeners.append(listener)
        return lambda: self._gone_listeners.remove(listener)

    async def started(self) -> None:
        """Return when the views are those of the cluster."""
        await self._started.wait()

    def view(self, job_id: str) -> JobFaults:
        """The view of a job; a healthy one where there is no such job."""
        job = self.state.jobs.get(job_id)
        return healthy(job_id) if job is None else job.view

    def isolated(self, nodes: Iterable[str], *, ignores_sub_health: bool) -> dict[str, Scope]:
        """Those of the nodes that are isolated now, and how."""
        records = (self.state.nodes.get(name) for name in nodes)
        known = (record for record in records if record is not None)
        found = (isolation(record, ignores_sub_health=ignores_sub_health) for record in known)
        return {each.node: each.scope for each in found if each is not None}

    def views(self) -> list[JobFaults]:
        """The views of all jobs, by id."""
        return [self.state.jobs[job_id].view for job_id in sorted(self.state.jobs)]

    def tell(self, event: Event) -> None:
        """Take an event that comes from within the plane (a retry, a recovery that was given up)."""
        self._feed.add(event)

    def send_public(self, request: object) -> tuple[int, str]:
        """Answer `SendPublicFault`, with the request as a map or as a dataclass of the same fields."""
        if dataclasses.is_dataclass(request) and not isinstance(request, type):
            request = dataclasses.asdict(request)
        report = self._read_public(request if isinstance(request, dict) else {})
        if isinstance(report, PublicRefused):
            return report.code, report.reason
        self._feed.add(PublicReported(report))
        left = f", {len(report.left_out)} left out: {report.left_out[0]}" if report.left_out else ""
        return Code.OK, f"public fault accepted{left}"

    def _read_public(self, request: Mapping[str, Any]) -> PublicReport | PublicRefused:
        resource = request.get("resource")
        if isinstance(resource, str) and resource in self.state.table.resources:
            self._buckets, allowed = take(self._buckets, resource, self._clock())
            if not allowed:
                return PublicRefused(Code.RATE, f"{resource} reports too many faults; try again in a second")
        return read_public(request, self.state.table, self._feed.serials)

    # ------------------------------------------------------------------------------------------------ running

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        self._feed.connect()
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer in self.sources.own():
                    tasks.create_task(informer.run())
                await self.sources.synced()
                await self._restore()
                self.sources.public.add_handler(self._public_map)
                self.sources.config.add_handler(self._config)
                self.sources.manual.add_handler(self._manual)
                self._started.set()
                self._take_turn()
                log.info("fault_centre_started", nodes=len(self.state.nodes), jobs=len(self.state.jobs))
                tasks.create_task(self.maps.run())
                tasks.create_task(self._labels.run())
                await self._remove_leftovers()
        finally:
            for handle in (self._timer, self._turn, *self._farewells.values()):
                if handle is not None:
                    handle.cancel()

    async def _restore(self) -> None:
        """Begin with what people have set and what the last process kept."""
        now = self._clock()
        for config in self.sources.config.store:
            seen, refused = read_policies(config.data, self.state.relations)
            _refuse(config, refused)
            self.state, _ = observe_all(self.state, [seen], now)
        if self.state.separation.enabled:
            # Where it is switched off, or its policy cannot be read, the list is left as it is.
            for manual in self.sources.manual.store:
                self._feed.add(_separations(manual, restore=True))
        self._feed.add(PublicRestored(await self._kept_public(now)))
        messages = []
        self._feed.look_around()
        for config in self.sources.public.store:
            report = read_public_config_map(config.data, self.state.table, self._feed.serials)
            if isinstance(report, PublicRefused):
                _refuse(config, [report.reason])
            else:
                messages.append(report)
        if messages:
            self._feed.add(PublicReported(settle_messages(messages, now)))
        self._summaries = await self._list_own(self.names.jobs, f",{jobsummary.LABEL}=true")
        for summary in self._summaries:
            self._publisher.restore(summary.data)

    async def _kept_public(self, now: float) -> dict[str, Any]:
        try:
            found = await self._client.get(CONFIG_MAP, self.names.shared, kept.STATISTIC_CM)
        except ApiError as error:
            if not error.is_not_found:
                raise
            return {}
        faults, notes = kept.read_statistic(found.data, self.state.table, now)
        _refuse(found, notes)
        return dict(faults)

    async def _list_own(self, namespace: str | None, more: str = "") -> list[ConfigMap]:
        """The ConfigMaps that an earlier process of ours has written."""
        mine = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
        return (await self._client.list(CONFIG_MAP, namespace, label_selector=mine + more)).items

    async def _remove_leftovers(self) -> None:
        """Take away what an earlier process has written and nobody wants any more."""
        for found in await self._list_own(self.names.components):
            name = found.metadata.name
            ours = name.startswith((clusterinfo.DEVICE_CM, clusterinfo.SWITCH_CM, clusterinfo.NODE_CM))
            if ours and not self.maps.wants(self.names.components, name):
                self.maps.want(self.names.components, name, Wanted(None))
        for found in self._summaries:
            namespace, name = found.metadata.namespace, found.metadata.name
            if name.startswith(jobsummary.PREFIX) and not self.maps.wants(namespace, name):
                self.maps.want(namespace, name, Wanted(None))
        self._summaries = []

    # -------------------------------------------------------------------------------------------------- turns

    def _soon(self) -> None:
        if self._turn is None and self._started.is_set():
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Take all that has come in, then tell, publish and set the timer."""
        self._turn = None
        now = self._clock()
        try:
            self._carry_on(now)
        except Exception:
            # A defect in telling or publishing must not end the watch for what comes next.
            log.exception("fault_centre_broke")
        finally:
            self._set_timer(now)

    def _carry_on(self, now: float) -> None:
        events, facts = self._feed.take()
        changes = self._observe(events or [TimePassed()], now)
        for view in changes.jobs:
            for listener in tuple(self._listeners):
                _call(listener, view)
        for node_listener in tuple(self._node_listeners) if changes.nodes else ():
            _call(node_listener, changes.nodes)
        for job_id in changes.gone:
            for gone_listener in tuple(self._gone_listeners):
                _call(gone_listener, job_id)
        for note in changes.notes:
            if note.refused:
                log.warning("fault_input_refused", about=note.about, why=note.text)
            else:
                log.info("fault_note", about=note.about, why=note.text)
        self._publish(changes, facts, now)

    def _observe(self, events: list[Event], now: float) -> Changes:
        """Take the events together; where that fails, one by one, without those that it fails for."""
        try:
            self.state, changes = observe_all(self.state, events, now)
        except Exception:
            log.exception("fault_events_broke", count=len(events))
        else:
            return changes
        found = Changes()
        for event in events:
            try:
                self.state, changes = observe_all(self.state, [event], now)
            except Exception:
                log.exception("fault_event_left_out", what=type(event).__name__)
            else:
                found = together(found, changes)
        return found

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        moment = next_deadline(self.state)
        delay_s = LONGEST_SLEEP_S if moment is None else min(max(0.0, moment - now), LONGEST_SLEEP_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._take_turn)

    def _publish(self, changes: Changes, facts: Iterable[JobFacts], now: float) -> None:
        self._publisher.nodes(self.state, changes.nodes, now)
        for job in facts:
            self._namespaces[job.job_id] = job.namespace
            self._publisher.job(job, now)
        for job_id in changes.gone:
            self._say_farewell(job_id, now)
        for mark in changes.marks:
            if namespace := self._namespaces.get(mark.job_id):
                self._labels.want(namespace, mark)
        if changes.public:
            self._publisher.public(self.state)
        if changes.separations:
            self._write_separations()

    def _say_farewell(self, job_id: str, now: float) -> None:
        self._namespaces.pop(job_id, None)
        self._publisher.job_gone(job_id, now)

        def forget() -> None:
            self._farewells.pop(job_id, None)
            self._publisher.forget(job_id)

        self._farewells[job_id] = asyncio.get_running_loop().call_later(GONE_S, forget)

    # --------------------------------------------------------------------------------------- edited by people

    def _public_map(self, change: Change, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if change is Change.DELETED or new is None or (old is not None and old.data == new.data):
            return  # a fault ends when its sender says so, not with its ConfigMap
        report = read_public_config_map(new.data, self.state.table, self._feed.serials)
        if isinstance(report, PublicRefused):
            _refuse(new, [report.reason])
        else:
            self._feed.add(PublicReported(report))

    def _config(self, change: Change, _old: ConfigMap | None, new: ConfigMap | None) -> None:
        if change is not Change.DELETED and new is not None:
            seen, refused = read_policies(new.data, self.state.relations)
            _refuse(new, refused)
            self._feed.add(seen)

    def _manual(self, change: Change, old: ConfigMap | None, new: ConfigMap | None) -> None:
        found = new or old
        if found is not None:
            gone = change is Change.DELETED
            self._feed.add(SeparationsSeen({}) if gone else _separations(found, restore=False))

    def _write_separations(self) -> None:
        data = kept.manual_info(self.state)
        written = SeparationsWritten(frozenset(kept.read_manual_info(data)[0]))

        def version() -> str:
            known = self.sources.manual.get(self.names.shared, kept.MANUAL_CM)
            return "" if known is None else known.metadata.resource_version

        def done(found: ConfigMap | None) -> None:
            if found is not None:
                self.sources.manual.assume(found)
            self._feed.add(written)

        self.maps.want(self.names.shared, kept.MANUAL_CM, Wanted(data or None, version=version, done=done))


def _separations(found: ConfigMap, *, restore: bool) -> SeparationsSeen:
    entries, broken = kept.read_manual_info(found.data)
    _refuse(found, [f"{node}: {reason}" for node, reason in broken.items()])
    return SeparationsSeen(entries, frozenset(broken), restore)


def _refuse(found: ConfigMap, reasons: Iterable[str]) -> None:
    name = f"{found.metadata.namespace}/{found.metadata.name}"
    for reason in reasons:
        log.warning("fault_input_refused", about=name, why=reason)


def _call(listener: Callable[[Any], None], value: object) -> None:
    try:
        listener(value)
    except Exception:
        # A defect of one listener must not cost the others what they wait for.
        log.exception("fault_listener_broke")
