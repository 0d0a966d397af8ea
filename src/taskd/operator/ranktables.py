"""Writes the rank table where a job wants it: into its ConfigMap, into a file on a shared directory, or both.

A table is written when its content changes, and not otherwise. The ConfigMap is read once for each job and
then known from our own writes; where a job did not ask for one, a user may still bring it, so its absence is
believed for a while only.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from taskd.core.acjob import names, volumes
from taskd.core.acjob.environment import has_ascend
from taskd.core.acjob.job import Job
from taskd.core.acjob.rankinput import SeenPod
from taskd.core.acjob.ranktable import Written, next_write, rank_table, read_written
from taskd.core.acjob.seen import PodSeen
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.resources import CONFIG_MAP

ABSENCE_S = 30.0
MANAGER = "taskd-operator"
log = structlog.get_logger()


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
    directory: str = ""
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _Known] = field(default_factory=dict)
    _files: dict[str, Path] = field(default_factory=dict)

    async def sync(self, job: Job, pods: Sequence[PodSeen]) -> None:
        """Bring both forms up to date; raises what the API server says."""
        if not has_ascend(job):
            return
        known = await self._look(job)
        sinks = volumes.asked_sinks(job, config_map_exists=known.exists)
        if not sinks:
            return
        result = rank_table(job, [_seen(pod) for pod in pods if pod.slot is not None])
        if volumes.CONFIG_MAP in sinks:
            await self._write_config_map(job, known, next_write(job, result, known.held))
        if volumes.FILE in sinks and self.directory:
            path = Path(self.directory) / f"{job.namespace}.{job.name}"
            self._files[job.uid] = path
            written = next_write(job, result, _read_files(path))
            if written is not None:
                write_files(path, written)

    def forget(self, alive: set[str]) -> None:
        """Remove what belongs to jobs that are gone."""
        for uid in [uid for uid in self._known if uid not in alive]:
            del self._known[uid]
        for uid in [uid for uid in self._files if uid not in alive]:
            remove_files(self._files.pop(uid))

    async def _look(self, job: Job) -> _Known:
        known = self._known.get(job.uid)
        if known is not None and (known.exists or self.clock() < known.until):
            return known
        try:
            found = await self.client.get(CONFIG_MAP, job.namespace, names.RINGS_CONFIG + job.name)
            known = _Known(exists=True, held=read_written(found.data), until=0.0)
        except ApiError as error:
            if not error.is_not_found:
                raise
            known = _Known(exists=False, held=None, until=self.clock() + ABSENCE_S)
        self._known[job.uid] = known
        return known

    async def _write_config_map(self, job: Job, known: _Known, written: Written | None) -> None:
        if written is None:
            return
        if not written.fits_config_map:
            log.warning("rank_table_too_large", job=job.key, bytes=len(written.text))
            return
        name = names.RINGS_CONFIG + job.name
        try:
            if known.exists:
                await self.client.patch(
                    CONFIG_MAP, job.namespace, name, {"data": written.data()}, field_manager=MANAGER
                )
            else:
                manifest = {**volumes.rings_config(job), "data": written.data()}
                await self.client.create(CONFIG_MAP, job.namespace, manifest)
        except ApiError:
            # It came or went under us: what is known of it is wrong.
            self._known.pop(job.uid, None)
            raise
        self._known[job.uid] = _Known(exists=True, held=written, until=0.0)


def _seen(pod: PodSeen) -> SeenPod:
    assert pod.slot is not None  # noqa: S101 - chosen by the caller
    return SeenPod(pod.name, pod.uid, pod.slot, pod.annotations, pod.ip, pod.node, pod.deleting)


def _read_files(path: Path) -> Written | None:
    found = {}
    for name in (volumes.HCCL_JSON, volumes.VERSION):
        with contextlib.suppress(OSError):
            found[name] = (path / name).read_text()
    return read_written(found)


def write_files(path: Path, written: Written) -> None:
    """Write table and number, each as a whole: a reader sees the old file or the new one, never a part."""
    if path.is_symlink():
        raise OSError(f"{path} is a link; a rank table is not written through links")
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, text in written.data().items():
        handle, temporary = tempfile.mkstemp(dir=path, prefix=f".{name}.")
        try:
            with os.fdopen(handle, "w") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def remove_files(path: Path) -> None:
    """Remove a job's table; whatever else lies in its directory stays, and the directory with it."""
    for name in (volumes.HCCL_JSON, volumes.VERSION):
        with contextlib.suppress(OSError):
            (path / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.rmdir()
