"""The directory of jobs on this machine.

``taskd status`` must find a job that another shell started, and must still be able to tell how a job ended
an hour ago, when none of its processes is left. So each job has a directory that its launcher and its
manager write and that every other command only reads::

    <base>/jobs/<job>/job.json         who runs it, where its manager listens, the token (mode 0600)
                      status.json      the last status
                      timeline.jsonl   one incident per line; a later line with the same number replaces it
                      logs/  fired/

Whether a job is alive is asked of the kernel, never of a file: a launcher that was killed had no chance to
write. A process id alone can belong to somebody else by now, so its start time is compared too.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from taskd.core.status import IncidentStatus, JobPhase, JobStatus
from taskd.kit.papers import JobPapers

DEFAULT_KEEP = 50
_SHOWN = 8  # names that fit on a line

_T = TypeVar("_T")

_RECORD = "job.json"
_STATUS = "status.json"
_TIMELINE = "timeline.jsonl"


class JobLookupError(LookupError):
    """No job, or no single job, answers to what was asked; or its directory cannot be used."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What a launcher leaves for the other commands when it starts a job."""

    job: str
    launcher_pid: int
    launcher_start_ticks: int
    manager_addr: str
    token: str
    created_stamp: float
    argv: tuple[str, ...] = ()
    cwd: str = ""
    host: str = ""
    scratch: str = ""
    run: str = ""
    papers: JobPapers = field(default_factory=JobPapers)


# --- places ----------------------------------------------------------------------------------------------


def base_dir(env: Mapping[str, str] | None = None) -> Path:
    """Choose the directory that holds TaskD's state on this machine, without creating it.

    A home that cannot be written (a read-only image, a container without one) is normal; the answer is
    then a directory of the user's own under the temporary directory.
    """
    environ = os.environ if env is None else env
    wanted = _wanted_base(environ)
    if wanted is not None and _writable(wanted):
        return wanted
    return _temporary_base()


def jobs_dir() -> Path:
    """Return the directory that holds one directory per job."""
    return base_dir() / "jobs"


def job_dir(job: str) -> Path:
    """Return the directory of a job, whether or not it exists."""
    if not job or "/" in job or job.startswith("."):
        raise JobLookupError(f"{job!r} is not the name of a job; `taskd status` without a name lists them")
    return jobs_dir() / job


def logs_dir(job: str) -> Path:
    """Return where the output of a job's ranks goes."""
    return job_dir(job) / "logs"


def fired_dir(job: str) -> Path:
    """Return where a fault of the schedule leaves its mark, so that it does not fire twice."""
    return job_dir(job) / "fired"


# --- the record ------------------------------------------------------------------------------------------


def open_job(record: JobRecord) -> Path:
    """Make the directory of a new job and write its record.

    A finished job of the same name makes room: its status and timeline would be mixed up with the new
    ones. A live one does not.
    """
    place = job_dir(record.job)
    if place.exists():
        try:
            old = read_record(record.job)
        except JobLookupError:
            old = None
        if old is not None and is_live(old):
            raise JobLookupError(
                f"a job named {record.job} already runs here (process {old.launcher_pid}); "
                "choose another name with --job, or stop that one with `taskd stop`"
            )
        shutil.rmtree(place, ignore_errors=True)
    write_record(record)
    for inner in (logs_dir(record.job), fired_dir(record.job)):
        inner.mkdir(mode=0o700, exist_ok=True)
    return place


def write_record(record: JobRecord) -> None:
    """Write or replace a job's record. It holds the token, so only its owner may read it."""
    if not record.host:
        record = replace(record, host=socket.gethostname())
    write_atomic(_own_dir(record.job) / _RECORD, msgspec.json.encode(record))


def adopt_job(record: JobRecord) -> None:
    """Write the record of a job that this machine manages from now on.

    What an earlier job of the same name left here is not its history. Where the machines share a home, it is.
    """
    old = read_as(job_dir(record.job) / _RECORD, JobRecord)
    if old is None or old.run != record.run:
        for name in (_STATUS, _TIMELINE):
            (job_dir(record.job) / name).unlink(missing_ok=True)
    write_record(record)


def read_record(job: str) -> JobRecord:
    """Read a job's record; no record means no such job."""
    record = read_as(job_dir(job) / _RECORD, JobRecord)
    if record is None:
        raise JobLookupError(_unknown(job))
    return record


def list_jobs() -> list[JobRecord]:
    """List the jobs of this machine, newest first.

    A home directory may be shared by many machines. The jobs of another one are left out: nothing here
    could tell whether they live.
    """
    try:
        names = [entry.name for entry in os.scandir(jobs_dir()) if entry.is_dir()]
    except OSError:
        return []
    here = socket.gethostname()
    records = [read_as(jobs_dir() / name / _RECORD, JobRecord) for name in names]
    mine = [record for record in records if record is not None and record.host in ("", here)]
    return sorted(mine, key=lambda record: (record.created_stamp, record.job), reverse=True)


def is_live(record: JobRecord) -> bool:
    """Tell whether the launcher of this very record still runs."""
    return read_start_ticks(record.launcher_pid) == record.launcher_start_ticks


def read_start_ticks(pid: int) -> int | None:
    """Read when a process started, in clock ticks since boot; None if it is gone or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may itself hold blanks and parentheses; after the last one all is regular.
    fields = stat.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else int(ticks)


# --- status and timeline ---------------------------------------------------------------------------------


def write_status(status: JobStatus) -> None:
    """Replace the job's last status in one move, so that a reader never sees half of it."""
    write_atomic(_own_dir(status.job) / _STATUS, msgspec.json.encode(status))


def read_status(job: str) -> JobStatus | None:
    """Read the last status that was written, or None if there is none yet."""
    return read_as(job_dir(job) / _STATUS, JobStatus)


def append_incident(job: str, incident: IncidentStatus) -> None:
    """Add an incident to the job's timeline, or a newer picture of one that is already there."""
    path = _own_dir(job) / _TIMELINE
    line = msgspec.json.encode(incident) + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        # A writer that died in the middle left a line without an end: begin a new one behind it.
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_timeline(job: str) -> list[IncidentStatus]:
    """Read the job's incidents in the order of their numbers; a torn line is skipped."""
    try:
        raw = (job_dir(job) / _TIMELINE).read_bytes()
    except OSError:
        return []
    incidents: dict[int, IncidentStatus] = {}
    for line in raw.split(b"\n"):
        try:
            incident = msgspec.json.decode(line, type=IncidentStatus)
        except msgspec.MsgspecError:
            continue
        incidents[incident.number] = incident
    return [incidents[number] for number in sorted(incidents)]


# --- finding ---------------------------------------------------------------------------------------------


def resolve_job(name: str | None) -> JobRecord:
    """Find the job that a command means.

    With a name, that one. Without, the only live one; if none lives, the newest that has finished.
    """
    if name is not None:
        return read_record(name)
    known = list_jobs()
    live = [record for record in known if is_live(record)]
    if len(live) > 1:
        names = ", ".join(record.job for record in live)
        raise JobLookupError(f"{len(live)} jobs run on this machine: {names}; name the one you mean")
    if live:
        return live[0]
    if known:
        return known[0]
    where = f"looked in {jobs_dir()}"
    raise JobLookupError(f"no job is known on this machine ({where}); start one with `taskd run`")


def sweep(keep: int = DEFAULT_KEEP) -> list[JobRecord]:
    """Remove the oldest finished jobs beyond ``keep`` and return those that look abandoned.

    Abandoned is a job whose last word was not that it ended, but whose launcher is gone. It may have left
    processes and shared memory behind, so its directory stays until somebody has looked after that and
    said so with ``close_abandoned``.
    """
    finished: list[JobRecord] = []
    abandoned: list[JobRecord] = []
    for record in list_jobs():
        if is_live(record):
            continue
        status = read_status(record.job)
        ended = status is not None and status.phase is JobPhase.ENDED
        (finished if ended else abandoned).append(record)
    for record in finished[keep:]:
        shutil.rmtree(job_dir(record.job), ignore_errors=True)
    return abandoned


def close_abandoned(record: JobRecord, reason: str, stamp: float) -> None:
    """Write the end of a job whose launcher could not do it."""
    last = read_status(record.job)
    if last is None:
        last = JobStatus(
            job=record.job,
            phase=JobPhase.ENDED,
            reason=reason,
            generation=0,
            restarts=0,
            max_restarts=0,
            world_size=0,
            manager_pid=0,
            manager_addr=record.manager_addr,
            started_stamp=record.created_stamp,
            stamp=stamp,
        )
    write_status(replace(last, phase=JobPhase.ENDED, reason=reason, stamp=stamp))


# --- files -----------------------------------------------------------------------------------------------


def _wanted_base(env: Mapping[str, str]) -> Path | None:
    if home := env.get("TASKD_HOME"):
        return Path(home).absolute()
    if state := env.get("XDG_STATE_HOME"):
        return Path(state).absolute() / "taskd"
    try:
        return Path.home() / ".local" / "state" / "taskd"
    except RuntimeError:  # no HOME and no entry in the user database
        return None


def _temporary_base() -> Path:
    return Path(tempfile.gettempdir()) / f"taskd-{os.getuid()}"


def _writable(path: Path) -> bool:
    """Tell whether a directory can be written, or could be made: its nearest existing ancestor decides."""
    for place in (path, *path.parents):
        if place.exists():
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def _own_dir(job: str) -> Path:
    """Make a job's directory, readable by its owner alone, and return it."""
    base = base_dir()
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Under a shared temporary directory somebody else may have put theirs in our way.
        if base == _temporary_base() and base.stat().st_uid != os.getuid():
            raise JobLookupError(f"{base} belongs to another user; set TASKD_HOME to a directory of yours")
        place = job_dir(job)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        advice = "set TASKD_HOME to a directory of yours"
        raise JobLookupError(f"cannot write under {base} ({why}); {advice}") from error
    return place


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file in one move, for its owner alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    draft.replace(path)


def read_as(path: Path, kind: type[_T]) -> _T | None:
    """Read a file of ours; None if there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _unknown(job: str) -> str:
    known = [record.job for record in list_jobs()]
    if not known:
        return f"no job {job} here: no job is known on this machine (looked in {jobs_dir()})"
    shown = ", ".join(known[:_SHOWN]) + (" …" if len(known) > _SHOWN else "")
    return f"no job {job} here; known are {shown}"
