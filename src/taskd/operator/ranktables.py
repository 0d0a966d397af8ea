"""Writes the rank table where a job wants it: into its ConfigMap, into a file on a shared directory, or both.

A table is written when its content changes, and not otherwise. The ConfigMap is read once for each job and
then known from our own writes, until pods are made anew; where a job did not ask for one, a user may still
bring it, so its absence is believed for a while only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from taskd.core.acjob import names, volumes
from taskd.core.acjob.environment import has_ascend
from taskd.core.acjob.job import Job
from taskd.core.acjob.rankinput import SeenPod
from taskd.core.acjob.ranktable import NotYet, RankTable, Written, next_write, rank_table, read_written
from taskd.core.acjob.seen import PodSeen
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.resources import CONFIG_MAP
from taskd.operator.owners import MANAGER, is_predecessors
from taskd.operator.tablefiles import TableFiles

ABSENCE_S = 30.0
PREDECESSOR_S = 1.0
"""How long the ConfigMap of a job that is gone may take to go too, before it is looked at again."""
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a table was not written."""

    message: str
    again: bool = True
    """Whether another try may help; otherwise only a change of the job does."""


@dataclass(slots=True)
class _Known:
    """What the ConfigMap of a job holds, as far as we know."""

    exists: bool
    held: Written | None
    until: float


@dataclass(slots=True)
class RankTables:
    """The tables of all jobs."""

    client: KubeClient
    files: TableFiles = field(default_factory=TableFiles)
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Known] = field(default_factory=dict)
    _filed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Namespace and name of the jobs that have files, by UID."""

    async def sync(self, job: Job, pods: Sequence[PodSeen]) -> Trouble | None:
        """Bring both forms up to date.

        What stands in the way of one does not keep the other from being written. Raises what the API server
        says of an object that came or went under us, which the next look settles.
        """
        if not has_ascend(job):
            return None
        try:
            known = await self._look(job)
        except ApiError as error:
            if not error.is_forbidden:
                raise
            return Trouble(f"the ConfigMap of the rank table cannot be read: {error.message}")
        sinks = volumes.asked_sinks(job, config_map_exists=known.exists)
        if not sinks:
            return None
        result = rank_table(job, [_seen(pod) for pod in pods if pod.slot is not None])
        trouble = None
        if volumes.FILE in sinks and self.files.root:
            trouble = await self._write_files(job, result)
        if volumes.CONFIG_MAP in sinks:
            trouble = await self._write_config_map(job, known, next_write(job, result, known.held)) or trouble
        return trouble

    def distrust(self, uid: str) -> None:
        """Read the job's ConfigMap again before the next write; somebody may have removed it."""
        known = self._known.get(uid)
        if known is not None and known.exists:
            del self._known[uid]

    async def forget(self, alive: set[str]) -> None:
        """Remove what belongs to jobs that are gone; what cannot be removed is tried again at the next."""
        for uid in [uid for uid in self._known if uid not in alive]:
            del self._known[uid]
        gone = [uid for uid in self._filed if uid not in alive]
        for uid, job in [(uid, self._filed.pop(uid)) for uid in gone]:
            await self._remove(*job, uid)

    async def clear(self, is_alive: Callable[[str], bool], namespace: str = "") -> None:
        """Remove the files of jobs that went while nobody watched."""
        if not self.files.root:
            return
        try:
            left = await self.files.left_behind(is_alive, namespace)
        except OSError as error:
            log.warning("rank_tables_not_listed", error=str(error))
            return
        for mark in left:
            where, _, name = mark.job.partition("/")
            await self._remove(where, name, mark.uid)

    async def _remove(self, namespace: str, name: str, uid: str) -> None:
        try:
            await self.files.remove(namespace, name, uid)
        except OSError as error:
            log.warning("rank_table_not_removed", job=f"{namespace}/{name}", error=str(error))
            self._filed[uid] = (namespace, name)

    async def _look(self, job: Job) -> _Known:
        known = self._known.get(job.uid)
        if known is not None and (known.exists or self.clock() < known.until):
            return known
        try:
            found = await self.client.get(CONFIG_MAP, job.namespace, names.RINGS_CONFIG + job.name)
        except ApiError as error:
            if not error.is_not_found:
                raise
            known = _Known(exists=False, held=None, until=self.clock() + ABSENCE_S)
        else:
            if is_predecessors(found.metadata, job):
                known = _Known(exists=False, held=None, until=self.clock() + PREDECESSOR_S)
            else:
                known = _Known(exists=True, held=read_written(found.data), until=0.0)
        self._known[job.uid] = known
        return known

    async def _write_files(self, job: Job, result: RankTable | NotYet) -> Trouble | None:
        self._filed[job.uid] = (job.namespace, job.name)
        try:
            await self.files.update(
                job.namespace, job.name, job.uid, lambda held: next_write(job, result, held)
            )
        except OSError as error:
            return Trouble(f"the rank table cannot be written to its file: {error}")
        return None

    async def _write_config_map(self, job: Job, known: _Known, written: Written | None) -> Trouble | None:
        if written is None:
            return None
        name = names.RINGS_CONFIG + job.name
        if not written.fits_config_map:
            size = len(written.text.encode())
            return Trouble(
                f"the rank table of {size} bytes is too large for the ConfigMap {name}; ask for the file",
                again=False,
            )
        try:
            if known.exists:
                await self.client.patch(
                    CONFIG_MAP, job.namespace, name, {"data": written.data()}, field_manager=MANAGER
                )
            else:
                manifest = {**volumes.rings_config(job), "data": written.data()}
                await self.client.create(CONFIG_MAP, job.namespace, manifest)
        except ApiError as error:
            # It came or went under us, or may not be written: what is known of it is wrong.
            self._known.pop(job.uid, None)
            if error.is_not_found or error.is_conflict or error.already_exists:
                raise
            return Trouble(f"the rank table cannot be written to the ConfigMap {name}: {error.message}")
        self._known[job.uid] = _Known(exists=True, held=written, until=0.0)
        return None


def _seen(pod: PodSeen) -> SeenPod:
    assert pod.slot is not None  # noqa: S101 - chosen by the caller
    return SeenPod(pod.name, pod.uid, pod.slot, pod.annotations, pod.ip, pod.node, pod.deleting)
