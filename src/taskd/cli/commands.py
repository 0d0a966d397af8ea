"""What the commands do, apart from how they are spelled.

``main`` declares the commands and their options; the bodies are here, so that asking for help imports
neither msgspec nor what reads a job's files. A command asks a live job's manager, and reads a finished job's
files. It returns its exit code and raises CliError for everything that a user can run into.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import msgspec

from taskd.cli import client, render
from taskd.cli.errors import CliError, ManagerUnreachable
from taskd.core.exits import MEANINGS, ExitCode
from taskd.core.faultfile import KINDS_FOR_RANKS_ONLY, MAX_EXIT_CODE, ROLES
from taskd.core.incidents import RECOVERING, SWITCHED
from taskd.core.launch import FaultKind
from taskd.core.perfetto import compute_trace
from taskd.core.status import IncidentStatus, JobPhase, JobStatus
from taskd.kit import jobs

WATCH_INTERVAL_S = 0.5
STOP_DEADLINE_S = 60.0

# What an orderly stop makes the job end with: the shell's code for SIGTERM, since somebody ended it.
STOP_CODE = int(ExitCode.SIGNAL_BASE) + int(signal.SIGTERM)

_POLL_S = 0.1
_INJECT_TIMEOUT_S = 15.0
_SWITCH_DEADLINE_S = 1900.0
_KIND_ALIASES = {"exit-code": FaultKind.EXIT, "exit_code": FaultKind.EXIT, "exitcode": FaultKind.EXIT}


def say(sentence: str) -> None:
    """Tell the user what happens, beside the output that a script may read."""
    print(f"taskd: {sentence}", file=sys.stderr, flush=True)


# --- seeing ----------------------------------------------------------------------------------------------


def show_status(job: str | None, output: str, *, watch: bool) -> int:
    """Show a job's status, once or until it ends."""
    record = _resolve(job)
    if not watch:
        _print_status(_fetch_status(record), output)
        return ExitCode.OK
    if output == "table" and render.on_terminal():
        return _watch_live(record)
    previous = None
    for status in _statuses(record):
        # A block that says the same again, but for the time, only makes the log longer.
        shown = replace(status, stamp=0.0)
        if shown != previous:
            _print_status(status, output, separate=previous is not None)
        previous = shown
    return ExitCode.OK


def show_timeline(job: str | None, output: str, perfetto: str | None) -> int:
    """Show one row per fault, and write the trace if asked."""
    record = _resolve(job)
    incidents = _fetch_timeline(record)
    if perfetto is not None:
        _write_trace(record.job, incidents, perfetto)
        say(f"wrote {len(incidents)} incidents to {perfetto}; open it at https://ui.perfetto.dev")
    if output == "json":
        _print_json([{**msgspec.to_builtins(one), "downtime_ms": one.downtime_ms} for one in incidents])
    elif output == "table" and render.on_terminal():
        render.print_rich(render.rich_timeline(record.job, incidents))
    else:
        print(render.plain_timeline(record.job, incidents))
    return ExitCode.OK


def show_logs(job: str | None, rank: int, attempt: int | None, *, stderr: bool, follow: bool) -> int:
    """Print what a rank wrote, and go on with what it writes."""
    record = _resolve(job)
    status = _fetch_status(record, prefer_files=True)
    found = next((one for one in status.ranks if one.rank == rank), None)
    if found is None:
        raise CliError(_no_rank(status, rank), ExitCode.NOT_FOUND)
    if not found.log:
        sentence = f"rank {rank} of job {record.job} has no log yet; try again once it runs"
        raise CliError(sentence, ExitCode.NOT_FOUND)
    current = Path(found.log)
    name = "stderr.log" if stderr else "stdout.log"
    path = (current if attempt is None else _attempt_dir(current, attempt)) / name
    if not path.exists() and not (follow and jobs.is_live(record)):
        raise CliError(_no_log(path, current, status, found.node), ExitCode.NOT_FOUND)
    if not follow:
        _copy(path, 0)
        return ExitCode.OK
    _follow(record, path, may_move=attempt is None)
    return ExitCode.OK


def show_exit_codes() -> int:
    """Print the table of exit codes."""
    names = {ExitCode.SIGNAL_BASE: "128+N"}
    rows = [
        (names.get(code, str(int(code))), meaning.removeprefix("128 + N: "))
        for code, meaning in MEANINGS.items()
    ]
    print(render.align(("code", "meaning"), rows))
    return ExitCode.OK


def show_version() -> int:
    """Print the version that is installed."""
    print(f"taskd {metadata.version('taskd')}")
    return ExitCode.OK


def _print_status(status: JobStatus, output: str, *, separate: bool = False) -> None:
    if output == "json":
        _print_json(msgspec.to_builtins(status))
        return
    if separate:
        print()
    if output == "table" and render.on_terminal():
        render.print_rich(render.rich_status(status))
    else:
        print(render.plain_status(status), flush=True)


def _watch_live(record: jobs.JobRecord) -> int:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        for status in _statuses(record):
            live.update(render.rich_status(status), refresh=True)
    return ExitCode.OK


def _statuses(record: jobs.JobRecord) -> Iterator[JobStatus]:
    """Yield a status at each interval until the job has ended; a manager being replaced is waited for."""
    while True:
        # Asked before the status: a job that ends in between still shows its last status.
        live = jobs.is_live(record)
        with contextlib.suppress(ManagerUnreachable):
            status = _fetch_status(record)
            yield status
            if status.phase is JobPhase.ENDED:
                return
        if not live:
            return
        time.sleep(WATCH_INTERVAL_S)
        record = jobs.read_record(record.job)  # a new manager has a new address


def _write_trace(job: str, incidents: list[IncidentStatus], path: str) -> None:
    try:
        Path(path).write_text(json.dumps(compute_trace(job, incidents)), encoding="utf-8")
    except OSError as error:
        raise _usage(f"cannot write the trace to {path} ({error.strerror}); choose another file") from error


# --- logs ------------------------------------------------------------------------------------------------


def _attempt_dir(current: Path, attempt: int) -> Path:
    """Return the directory of another attempt; the layout is attempt_<K>/<local rank>."""
    return current.parent.parent / f"attempt_{attempt}" / current.name


def _attempts(current: Path) -> list[int]:
    """List the attempts of a rank that have left a directory."""
    places = current.parent.parent.glob(f"attempt_*/{current.name}")
    numbers = (place.parent.name.removeprefix("attempt_") for place in places)
    return sorted(int(number) for number in numbers if number.isdecimal())


def _attempt_of(place: Path) -> int:
    number = place.parent.name.removeprefix("attempt_")
    return int(number) if number.isdecimal() else -1


def _copy(path: Path, offset: int) -> int:
    """Write a file to stdout from an offset on and return where it ended."""
    try:
        with path.open("rb") as file:
            # Shorter than what was read already: begun anew.
            file.seek(offset if offset <= path.stat().st_size else 0)
            while block := file.read(1 << 16):
                sys.stdout.buffer.write(block)
            offset = file.tell()
    except FileNotFoundError:
        return offset
    sys.stdout.buffer.flush()
    return offset


def _follow(record: jobs.JobRecord, path: Path, *, may_move: bool) -> None:
    """Print what comes until the job is gone; go along when the rank is started again."""
    offset = 0
    while True:
        live = jobs.is_live(record)
        offset = _copy(path, offset)
        newest = max(_attempts(path.parent), default=-1) if may_move else -1
        if newest > _attempt_of(path.parent):
            _copy(path, offset)
            say(f"the rank was started again: attempt {newest}")
            path, offset = _attempt_dir(path.parent, newest) / path.name, 0
            continue
        if not live:
            return
        time.sleep(_POLL_S)


def _no_log(path: Path, current: Path, status: JobStatus, node: str) -> str:
    attempts = _attempts(current)
    if attempts:
        known = ", ".join(str(number) for number in attempts)
        return f"there is no {path}; attempts with a log are {known}"
    host = next((one.host for one in status.nodes if one.node == node), node)
    return f"there is no {path} on this machine; the rank ran on {host}, look there"


# --- acting ----------------------------------------------------------------------------------------------


def stop(job: str | None) -> int:
    """End a job in order and wait until it is gone."""
    record = _resolve(job)
    if not jobs.is_live(record):
        if job is None:
            raise CliError("no job runs on this machine", ExitCode.NOT_FOUND)
        say(f"job {record.job} does not run any more; nothing to stop")
        return ExitCode.OK
    say(f"stopping job {record.job}")
    try:
        _call(record, "stop", {"why": "stopped by `taskd stop`", "code": STOP_CODE})
    except ManagerUnreachable:
        say(f"its manager does not answer; asking its launcher (process {record.launcher_pid}) instead")
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.launcher_pid, signal.SIGTERM)
    if not _wait(lambda: not jobs.is_live(record), STOP_DEADLINE_S):
        raise CliError(
            f"job {record.job} still runs after {STOP_DEADLINE_S:g} s; "
            f"`taskd status {record.job}` shows its state, kill -9 {record.launcher_pid} ends it at once"
        )
    say(f"job {record.job} has ended")
    return ExitCode.OK


def inject(
    kind: str,
    job: str | None,
    *,
    rank: int | None,
    node: int | None,
    role: str | None,
    step: int | None,
    code: int | None,
) -> int:
    """Break something in a running job, now or at a step."""
    params = plan_injection(kind, rank=rank, node=node, role=role, step=step, code=code)
    record = _resolve(job)
    if not jobs.is_live(record):
        sentence = f"job {record.job} does not run any more, so nothing can be broken in it"
        raise CliError(sentence, ExitCode.NOT_FOUND)
    status = _fetch_status(record)
    if rank is not None and rank not in {one.rank for one in status.ranks}:
        raise CliError(_no_rank(status, rank), ExitCode.NOT_FOUND)
    if node is not None and node not in {one.node_rank for one in status.nodes}:
        known = ", ".join(sorted(str(one.node_rank) for one in status.nodes)) or "none yet"
        raise CliError(f"job {status.job} has no node {node}; its nodes are {known}", ExitCode.NOT_FOUND)
    answer = msgspec.convert(_call(record, "inject", params, _INJECT_TIMEOUT_S), dict[str, str])
    detail = answer.get("detail") or "accepted"
    print(f"{answer.get('order', '')}: {detail}".removeprefix(": "))
    return ExitCode.OK


def plan_injection(
    kind_text: str,
    *,
    rank: int | None = None,
    node: int | None = None,
    role: str | None = None,
    step: int | None = None,
    code: int | None = None,
) -> dict[str, object]:
    """Check what ``taskd inject`` was asked for and return the manager's parameters."""
    text = kind_text.lower()
    if text not in _KIND_ALIASES and text not in list(FaultKind):
        raise _usage(f"{kind_text} is not a kind of fault; the kinds are {', '.join(FaultKind)}")
    kind = _KIND_ALIASES.get(text) or FaultKind(text)
    victims = {"rank": rank, "node": node, "role": role}
    named = [name for name, value in victims.items() if value is not None]
    if len(named) != 1:
        found = " and ".join(f"--{name}" for name in named) or "none of them"
        raise _usage(f"exactly one of --rank, --node and --role says whom to break; found {found}")
    if kind in KINDS_FOR_RANKS_ONLY and rank is None:
        raise _usage(f"{kind} happens inside a training process; name it with --rank")
    if role is not None and role not in ROLES:
        raise _usage(f"--role {role}: the roles are {', '.join(ROLES)}")
    for name, number in (("--rank", rank), ("--node", node), ("--at-step", step)):
        if number is not None and number < 0:
            raise _usage(f"{name} {number}: it must be 0 or more")
    if code is not None and kind is not FaultKind.EXIT:
        raise _usage(f"--code belongs to exit, not to {kind}; leave it out")
    if code is not None and not 0 <= code <= MAX_EXIT_CODE:
        raise _usage(f"--code {code}: exit codes go from 0 to {MAX_EXIT_CODE}")
    params: dict[str, object] = {"kind": str(kind), named[0]: victims[named[0]]}
    params["step"] = -1 if step is None else step
    params["code"] = 1 if code is None else code
    return params


def switch(job: str | None, *, rank: int | None, node: int | None) -> int:
    """Have ranks moved, and wait until they are or cannot be."""
    if (rank is None) == (node is None):
        found = "none of them" if rank is None else "both"
        raise _usage(f"exactly one of --rank and --node says what to move; found {found}")
    name, number = ("--rank", rank) if node is None else ("--node", node)
    if number is None or number < 0:
        raise _usage(f"{name} {number}: it must be 0 or more")
    record = _resolve(job)
    if not jobs.is_live(record):
        raise CliError(f"job {record.job} does not run any more", ExitCode.NOT_FOUND)
    params: dict[str, object] = {name.removeprefix("--"): number}
    answer = msgspec.convert(_call(record, "switch", params), dict[str, int])
    say(f"preparing; `taskd timeline {record.job}` shows it as entry {answer['number']}")
    incident = _wait_for_incident(record, answer["number"])
    if incident.outcome != SWITCHED:
        raise CliError(f"not moved: {incident.outcome}")
    print(f"{incident.what}: {incident.downtime_ms:.0f} ms from step to step")
    return ExitCode.OK


def _wait_for_incident(record: jobs.JobRecord, number: int) -> IncidentStatus:
    deadline = time.monotonic() + _SWITCH_DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ManagerUnreachable):
            for incident in _fetch_timeline(record):
                if incident.number == number and incident.outcome != RECOVERING:
                    return incident
        if not jobs.is_live(record):
            raise CliError(f"job {record.job} ended before anything was moved")
        time.sleep(_POLL_S)
        record = jobs.read_record(record.job)  # a new manager has a new address
    raise CliError(f"not moved within {_SWITCH_DEADLINE_S:g} s; `taskd timeline {record.job}` shows it")


# --- asking ----------------------------------------------------------------------------------------------


def _resolve(job: str | None) -> jobs.JobRecord:
    try:
        return jobs.resolve_job(job)
    except jobs.JobLookupError as error:
        several = job is None and bool(jobs.list_jobs())
        raise CliError(str(error), ExitCode.USAGE if several else ExitCode.NOT_FOUND) from error


def _call(
    record: jobs.JobRecord,
    method: str,
    params: dict[str, object],
    timeout_s: float = client.DEFAULT_TIMEOUT_S,
) -> object:
    return client.call(record.manager_addr, record.token, method, params, timeout_s, record.papers)


def _fetch_status(record: jobs.JobRecord, *, prefer_files: bool = False) -> JobStatus:
    """Get a job's status from its manager while it lives, else from its directory.

    Where the last status on disk is good enough, a manager that cannot be reached is no obstacle.
    """
    if jobs.is_live(record):
        try:
            return msgspec.convert(_call(record, "status", {}), JobStatus)
        except ManagerUnreachable:
            if jobs.is_live(record) and not (prefer_files and jobs.read_status(record.job)):
                raise
    status = jobs.read_status(record.job)
    if status is None:
        raise CliError(f"job {record.job} left no status: it ended before it had one", ExitCode.NOT_FOUND)
    if status.phase is not JobPhase.ENDED and not jobs.is_live(record):
        # Nobody was left to write the end down.
        from taskd.launcher.places import remove_scratch

        remove_scratch(record.job, record.scratch)
        jobs.close_abandoned(record, "its launcher was killed", time.time())
        status = jobs.read_status(record.job) or status
    return status


def _fetch_timeline(record: jobs.JobRecord) -> list[IncidentStatus]:
    if jobs.is_live(record):
        try:
            return msgspec.convert(_call(record, "timeline", {}), list[IncidentStatus])
        except ManagerUnreachable:
            if jobs.is_live(record):
                raise
    return jobs.read_timeline(record.job)


def _wait(done: Callable[[], bool], deadline_s: float) -> bool:
    until = time.monotonic() + deadline_s
    while not done():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True


def _no_rank(status: JobStatus, rank: int) -> str:
    ranks = sorted(one.rank for one in status.ranks)
    known = f"its ranks are {ranks[0]} to {ranks[-1]}" if ranks else "it has no ranks now"
    return f"job {status.job} has no rank {rank}; {known}"


def _usage(sentence: str) -> CliError:
    return CliError(sentence, ExitCode.USAGE)


def _print_json(value: object) -> None:
    print(json.dumps(value), flush=True)
