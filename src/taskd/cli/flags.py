"""torchrun's flags, and TaskD's own, as one ``LaunchSpec``.

Pure: a command line and a ``Machine`` in, a spec and notes out. What is wrong is said here, before anything
starts, in one sentence that names the flag or the variable; behind this module nobody checks again.

The rules of torchrun that people rely on and that are easy to miss: with one node and no port given, a run
gets a free port and a run id of its own (two such runs on one machine do not disturb each other); a port or
several nodes make it static, on port 29500; c10d has node ranks assigned at joining.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from taskd.cli.errors import FlagError
from taskd.cli.flagtable import WITHOUT_EFFECT, Given, read_flags
from taskd.cli.machine import DeviceKind, Machine
from taskd.cli.surroundings import STRATEGIES, describe_place, look_around
from taskd.core.faultfile import FaultFileError, parse_faults
from taskd.core.hangs import HangLimitError
from taskd.core.hccl import VariableError
from taskd.core.launch import (
    DEFAULT_MAX_RESTARTS,
    DEFAULT_MONITOR_INTERVAL_S,
    DEFAULT_STOP_GRACE_S,
    LOCAL_HOST,
    LaunchSpec,
    LogSettings,
    ScheduledFault,
)
from taskd.core.programs import Program, ProgramKind
from taskd.core.variables import read_variables

__all__ = ["FlagError", "RunRequest", "parse_run"]

STATIC_PORT = 29500
C10D_PORT = 29400
RECOVER_STRATEGIES = ("retry", "recover", "recover-in-place", "elastic-training", "dump", "exit")

_MAX_PORT = 65535
_MAX_COUNT = 2**31 - 1
_NO_ID = "none"
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STREAMS = re.compile(r"(\d+:[0-3])(,\d+:[0-3])*")
_HOST = re.compile(r"[\w.:-]+")
_VISIBLE = {DeviceKind.GPU: "CUDA_VISIBLE_DEVICES", DeviceKind.NPU: "ASCEND_RT_VISIBLE_DEVICES"}
_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_TRUE = ("1", "true", "t", "yes", "y")
_FALSE = ("0", "false", "f", "no", "n")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A job to start, and what the user should know about the flags that were given."""

    spec: LaunchSpec
    notes: tuple[str, ...] = ()


def parse_run(argv: Sequence[str], machine: Machine) -> RunRequest:
    """Parse the arguments of ``taskd run``. Raises FlagError, or HelpRequested."""
    given = read_flags(argv, machine.env)
    notes: list[str] = []
    given, place = look_around(given, machine.env, machine.hostname())
    if given.is_on("virtual-local-rank"):
        raise given.complain("virtual-local-rank", "TaskD keeps LOCAL_RANK as it is; leave the flag out")

    spec = LaunchSpec(
        job="",
        program=_parse_program(given, machine),
        local_world=_parse_local_world(given, machine),
        manager_port=_parse_port(given, "manager-port", 0),
        role=given.text("role") or "default",
        max_restarts=_parse_count(given, "max-restarts", DEFAULT_MAX_RESTARTS),
        keep_trying=given.is_on("keep-trying"),
        monitor_interval_s=_parse_interval(given),
        stop_grace_s=_parse_grace(given, machine),
        spares=_parse_count(given, "spares", 0),
        spare_nodes=_parse_count(given, "spare-nodes", 0),
        logs=_parse_logs(given, machine),
        recover_strategies=_parse_strategies(given, machine.env),
        dump_dir=_parse_directory(given, "dump-dir"),
        resume_dir=_parse_directory(given, "resume", exists=True),
        local_addr=given.text("local-addr") or "",
        pod=place,
    )
    spec = _parse_rdzv_conf(spec, given, notes)
    spec = _parse_nodes(spec, given, machine, notes)
    spec = replace(spec, faults=_parse_fault_file(spec, given, machine))
    spec = _parse_variables(spec, given, machine)
    spec = replace(spec, job=_choose_job_name(spec, given))
    _check_start_method(given)
    if place is not None:
        notes.append(describe_place(spec, given))
    notes.extend(f"--{name} has no effect with TaskD" for name in WITHOUT_EFFECT if given.has(name))
    return RunRequest(spec, tuple(notes))


# --- the program -----------------------------------------------------------------------------------------


def _parse_program(given: Given, machine: Machine) -> Program:
    script, args = given.script, given.script_args
    as_module, as_command = given.is_on("module"), given.is_on("no-python")
    if given.is_on("run-path"):
        as_module = as_command = False
    if as_module and as_command:
        raise FlagError("--module and --no-python exclude each other: a module needs Python, so drop one")
    if as_module:
        return Program(ProgramKind.MODULE, script, args)
    if as_command:
        if machine.which(script) is None:
            raise FlagError(
                f"command {script} is not in PATH or may not be executed; install it or give its path"
            )
        return Program(ProgramKind.COMMAND, script, args)
    if not machine.exists(script):
        other = "use -m for a module, --no-python for a command"
        raise FlagError(f"script {script} does not exist; check its path, or {other}")
    return Program(ProgramKind.SCRIPT, script, args)


def _parse_local_world(given: Given, machine: Machine) -> int:
    name = "nproc-per-node"
    text = given.text(name)
    match text:
        case None:
            return 1
        case "cpu":
            return machine.count_cpus()
        case "auto":
            counts = (_count_visible(kind, machine) for kind in DeviceKind)
            return next((count for count in counts if count), 0) or machine.count_cpus()
        case DeviceKind.GPU | DeviceKind.NPU:
            kind = DeviceKind(text)
            count = _count_visible(kind, machine)
            if not count:
                listed = machine.env.get(_VISIBLE[kind])
                limit = "" if listed is None else f" ({_VISIBLE[kind]}={listed})"
                raise given.complain(name, f"this machine shows no {kind}{limit}; give a number, auto or cpu")
            return count
        case _:
            pass
    return _parse_int(given, name, range(1, _MAX_COUNT), "a number from 1, or auto, cpu, gpu or npu")


def _count_visible(kind: DeviceKind, machine: Machine) -> int:
    """Count the devices that a process of this job may use, as the device's own runtime counts them."""
    present = machine.count_devices(kind)
    listed = machine.env.get(_VISIBLE[kind])
    if listed is None:
        return present
    # A list ends at its first entry that names no device; an entry that is no number is a device's name.
    entries = [entry.strip() for entry in listed.split(",")]
    valid = takewhile(lambda entry: entry and (not _is_int(entry) or 0 <= int(entry) < present), entries)
    return min(present, sum(1 for _ in valid))


# --- nodes and where they meet ---------------------------------------------------------------------------


def _parse_nodes(spec: LaunchSpec, given: Given, machine: Machine, notes: list[str]) -> LaunchSpec:
    low, high = _parse_range(given)
    backend = given.text("rdzv-backend") or "static"
    if backend.startswith("etcd"):
        raise given.complain("rdzv-backend", "TaskD needs no etcd, its manager does that work; take c10d")
    if backend not in ("static", "c10d"):
        raise given.complain("rdzv-backend", "the backends are static and c10d")
    endpoint = given.text("rdzv-endpoint") or ""

    if given.has("local-nodes"):
        return _parse_local_nodes(spec, given, machine, high)
    if given.is_on("standalone"):
        if low > 1:
            rule = f"that means one node, and --nnodes asks for {low}; drop one of the two"
            raise given.complain("standalone", rule)
        return _alone(spec, machine.new_id())
    spec = replace(spec, min_nodes=low, max_nodes=high)
    if spec.spare_nodes and (high > 1 or endpoint):
        rule = "it plays nodes on one machine; over several, a node beyond --nnodes waits as a spare"
        raise given.complain("spare-nodes", rule)
    if spec.pod is not None:
        return _parse_pod(spec, given)
    if backend == "c10d":
        return _parse_c10d(spec, given, endpoint, notes)
    if high == 1 and not endpoint and not given.has("master-port"):
        return _alone(spec, machine.new_id())
    return _parse_static(spec, given, endpoint, notes)


def _parse_local_nodes(spec: LaunchSpec, given: Given, machine: Machine, high: int) -> LaunchSpec:
    count = _parse_count(given, "local-nodes", 1, low=1)
    for other, clashes in (("nnodes", high > 1), ("rdzv-endpoint", given.has("rdzv-endpoint"))):
        if clashes:
            rule = (
                f"all nodes are then on this machine, so --{other} does not go with it; drop one of the two"
            )
            raise given.complain("local-nodes", rule)
    return replace(_alone(spec, machine.new_id()), min_nodes=count, max_nodes=count, local_nodes=count)


def _alone(spec: LaunchSpec, run_id: str) -> LaunchSpec:
    """Place a job on this machine only; port 0 is chosen free at each start."""
    return replace(
        spec, run_id=run_id, min_nodes=1, max_nodes=1, node_rank=0, master_addr=LOCAL_HOST, master_port=0
    )


def _parse_static(spec: LaunchSpec, given: Given, endpoint: str, notes: list[str]) -> LaunchSpec:
    if endpoint:
        host, port = _parse_endpoint(given, endpoint, 0)
        if not port:
            raise given.complain("rdzv-endpoint", "a static set-up needs the port too, as in host:29500")
    else:
        host = _strip_brackets(given.text("master-addr") or LOCAL_HOST)
        port = _parse_port(given, "master-port", STATIC_PORT)
        if not port and spec.max_nodes > 1:
            raise given.complain("master-port", "the other nodes must know the port, so it cannot be 0")
    node_rank = _parse_node_rank(spec, given)
    if node_rank and not endpoint and not given.has("master-addr"):
        notes.append(f"no --master-addr given: node {node_rank} looks for node 0 on this machine")
    run_id = given.text("rdzv-id") or _NO_ID
    return replace(spec, run_id=run_id, node_rank=node_rank, master_addr=host, master_port=port)


def _parse_pod(spec: LaunchSpec, given: Given) -> LaunchSpec:
    """Place a pod of a job. Ranks meet in rank 0's own pod, wherever that is by then, at a port that is free.

    So the job survives a pod that comes back with another address, and no Service stands in between.
    """
    node_rank = _parse_node_rank(spec, given)
    host = _strip_brackets((given.text("master-addr") or "").strip())
    if not _HOST.fullmatch(host):
        raise given.complain("master-addr", "it is the name or the address of rank 0's pod")
    port = _parse_port(given, "master-port", 0)
    run_id = given.text("rdzv-id") or given.text("job") or _NO_ID
    return replace(spec, run_id=run_id, node_rank=node_rank, master_addr=host, master_port=port)


def _parse_node_rank(spec: LaunchSpec, given: Given) -> int:
    node_rank = _parse_count(given, "node-rank", 0)
    if node_rank >= spec.max_nodes:
        highest = spec.max_nodes - 1
        raise given.complain("node-rank", f"the job has {spec.max_nodes} nodes, ranked 0 to {highest}")
    return node_rank


def _parse_c10d(spec: LaunchSpec, given: Given, endpoint: str, notes: list[str]) -> LaunchSpec:
    host, port = _parse_endpoint(given, endpoint, C10D_PORT)
    run_id = given.text("rdzv-id") or _NO_ID
    unused = (name for name in ("node-rank", "master-addr", "master-port") if given.has(name))
    notes.extend(f"--{name} is for static set-ups; c10d ignores it" for name in unused)
    if not port:
        # torchrun's way of saying "on this machine, anywhere".
        if spec.max_nodes > 1:
            raise given.complain("rdzv-endpoint", "the other nodes must know the port, so it cannot be 0")
        return _alone(spec, run_id)
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return replace(spec, run_id=run_id, node_rank=-1, rdzv_backend="c10d", rdzv_endpoint=shown)


def _parse_range(given: Given) -> tuple[int, int]:
    text = given.text("nnodes")
    if text is None:
        return 1, 1
    low, _, high = text.partition(":")
    rule = "the number of nodes is N or MIN:MAX with 0 < MIN <= MAX, such as 2 or 1:4"
    if not _is_int(low) or not _is_int(high or low) or text.endswith(":"):
        raise given.complain("nnodes", rule)
    least, most = int(low), int(high or low)
    if not 0 < least <= most <= _MAX_COUNT:
        raise given.complain("nnodes", rule)
    return least, most


def _parse_endpoint(given: Given, endpoint: str, default_port: int) -> tuple[str, int]:
    endpoint = endpoint.strip()
    if not endpoint:
        return "localhost", default_port
    host, port_text = endpoint, ""
    if not endpoint.endswith("]"):
        before, colon, after = endpoint.rpartition(":")
        host, port_text = (before, after) if colon else (endpoint, "")
        if colon and (not after.isdecimal() or int(after) > _MAX_PORT):
            rule = f"the port is a number from 0 to {_MAX_PORT}, as in host:29400"
            raise given.complain("rdzv-endpoint", rule)
    host = _strip_brackets(host)
    if not _HOST.fullmatch(host):
        rule = "the host is a name or an address, as in host:29400 or [::1]:29400"
        raise given.complain("rdzv-endpoint", rule)
    return host, int(port_text) if port_text else default_port


def _parse_rdzv_conf(spec: LaunchSpec, given: Given, notes: list[str]) -> LaunchSpec:
    conf: dict[str, str] = {}
    for pair in filter(None, (given.text("rdzv-conf") or "").strip().split(",")):
        key, _, value = (part.strip() for part in pair.partition("="))
        if not key or not value:
            raise given.complain("rdzv-conf", f"{pair!r} is not KEY=VALUE; write for example timeout=900")
        conf[key] = value
    for key, value in conf.items():
        match key:
            case "join_timeout":
                spec = replace(spec, join_timeout_s=_conf_seconds(given, key, value))
            case "timeout":
                if "join_timeout" not in conf:
                    spec = replace(spec, join_timeout_s=_conf_seconds(given, key, value))
            case "last_call_timeout":
                spec = replace(spec, last_call_s=_conf_seconds(given, key, value))
            case "is_host":
                if value.lower() not in _TRUE + _FALSE:
                    raise given.complain("rdzv-conf", f"is_host is true or false, not {value}")
                spec = replace(spec, rdzv_is_host=value.lower() in _TRUE)
            case _:
                notes.append(f"--rdzv-conf {key} has no effect with TaskD")
    return spec


def _conf_seconds(given: Given, key: str, value: str) -> float:
    seconds = _to_float(value)
    if seconds is None or seconds <= 0:
        raise given.complain("rdzv-conf", f"{key} is a number of seconds above 0, not {value}")
    return seconds


# --- the rest --------------------------------------------------------------------------------------------


def _parse_logs(given: Given, machine: Machine) -> LogSettings:
    ranks = given.text("local-ranks-filter") or ""
    parts = [part.strip() for part in ranks.split(",")] if ranks else []
    if not all(part.isdecimal() for part in parts):
        raise given.complain("local-ranks-filter", "local ranks are numbers with commas between, such as 0,1")
    template = given.text("log-line-prefix-template") or machine.env.get(_PREFIX_VARIABLE)
    return LogSettings(
        directory=given.text("log-dir") or "",
        redirects=_parse_streams(given, "redirects"),
        tee=_parse_streams(given, "tee"),
        show_local_ranks=tuple(sorted({int(part) for part in parts})),
        prefix_template=template or "",
    )


def _parse_streams(given: Given, name: str) -> dict[int, int]:
    text = given.text(name)
    if text is None or text == "0":
        return {}
    if text in ("1", "2", "3"):
        return {-1: int(text)}
    if not _STREAMS.fullmatch(text):
        rule = "0 is none, 1 stdout, 2 stderr, 3 both, for all ranks or as RANK:STREAMS,… such as 0:1,1:2"
        raise given.complain(name, rule)
    pairs = (pair.split(":") for pair in text.split(","))
    return {int(rank): int(streams) for rank, streams in pairs}


def _parse_directory(given: Given, name: str, *, exists: bool = False) -> str:
    text = given.text(name)
    if text is None:
        return ""
    path = Path(text).absolute()
    if path.exists() and not path.is_dir():
        raise given.complain(name, "that is a file; give a directory")
    if exists and not path.is_dir():
        raise given.complain(name, "there is no such directory")
    return str(path)


def _parse_strategies(given: Given, env: Mapping[str, str]) -> tuple[str, ...]:
    """The flag, else what the operator put into the pod; nothing means the usual ones."""
    if given.text("recover-strategy") is not None:
        names, wrong = _split_strategies(given.text("recover-strategy") or "")
        if wrong or not names:
            raise given.complain("recover-strategy", _strategy_rule(wrong))
        return names
    listed = env.get(STRATEGIES, "").strip()
    if listed:
        names, wrong = _split_strategies(listed)
        if wrong:
            where = f"{STRATEGIES}={listed} in the environment"
            raise FlagError(f"{where}: {_strategy_rule(wrong)}; correct or unset it")
        return names
    return _reference_strategies(env)


def _split_strategies(text: str) -> tuple[tuple[str, ...], list[str]]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(dict.fromkeys(names)), [name for name in names if name not in RECOVER_STRATEGIES]


def _strategy_rule(wrong: Sequence[str]) -> str:
    found = f", not {wrong[0]}" if wrong else ""
    return f"a strategy is one of {', '.join(RECOVER_STRATEGIES)}{found}"


def _reference_strategies(env: Mapping[str, str]) -> tuple[str, ...]:
    """What the reference operator's variables allow. `exit` is not among them; it is always the last way."""
    if env.get("PROCESS_RECOVER") != "on" or not env.get("HIGH_AVAILABILITY", "").strip():
        return ()
    names, _ = _split_strategies(env["HIGH_AVAILABILITY"])
    in_place = ("recover-in-place",) if env.get("ENABLE_RESTART_FAULT_PROCESS") == "on" else ()
    known = tuple(name for name in names if name in RECOVER_STRATEGIES)
    return tuple(dict.fromkeys((*in_place, *known, "exit")))


def _parse_fault_file(spec: LaunchSpec, given: Given, machine: Machine) -> tuple[ScheduledFault, ...]:
    path = given.text("faults")
    if path is None:
        return ()
    try:
        faults = parse_faults(machine.read_text(path))
        for fault in faults:
            _check_victim(fault, spec)
    except FaultFileError as error:
        raise FlagError(f"faults file {path}, line {error.line}: {error.why}") from error
    except UnicodeDecodeError as error:
        raise FlagError(f"faults file {path} is not text in UTF-8; write JSON lines") from error
    except OSError as error:
        raise FlagError(f"faults file {path} cannot be read ({error.strerror}); check --faults") from error
    return faults


def _parse_variables(spec: LaunchSpec, given: Given, machine: Machine) -> LaunchSpec:
    floor, ceiling = given.text("hang-floor"), given.text("hang-ceiling")
    try:
        found = read_variables(machine.env, spec.max_nodes * spec.local_world, floor, ceiling)
    except HangLimitError as error:
        raise given.complain(f"hang-{error.which}", str(error)) from error
    except VariableError as error:
        raise FlagError(str(error)) from error
    return replace(
        spec,
        faults=(*spec.faults, *found.faults),
        hang_floor_s=found.hang_floor_s,
        hang_ceiling_s=found.hang_ceiling_s,
    )


def _check_victim(fault: ScheduledFault, spec: LaunchSpec) -> None:
    """Refuse a fault that could never fire because nobody has that number."""
    line = int(fault.fault_id.rpartition("-")[2])
    ranks = spec.max_nodes * spec.local_world
    for what, number, count in (("rank", fault.rank, ranks), ("node", fault.node, spec.max_nodes)):
        if number >= count:
            why = f"{what} {number} does not exist; the job's {what}s are 0 to {count - 1}"
            raise FaultFileError(line, why)


def _choose_job_name(spec: LaunchSpec, given: Given) -> str:
    """Name a job after its script, so that people recognise it, and apart from its neighbours.

    Nodes of one job must come to the same name by themselves: a run alone has its random run id, the
    others have the id that the user gave them, or the port they meet at.
    """
    name = given.text("job")
    if name is not None:
        if not _JOB_NAME.fullmatch(name):
            rule = "a name is up to 100 letters, digits, '.', '_' and '-', beginning with a letter or digit"
            raise given.complain("job", rule)
        return name
    target = spec.program.target.rstrip("/").rpartition("/")[2].removesuffix(".py")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", target).strip("._-")[:40] or "job"
    if spec.run_id == _NO_ID:
        port = spec.rdzv_endpoint.rpartition(":")[2] or str(spec.master_port)
        return f"{stem}-{port}"
    if spec.run_id == given.text("rdzv-id") and _JOB_NAME.fullmatch(spec.run_id):
        return spec.run_id
    return f"{stem}-{re.sub(r'[^A-Za-z0-9]+', '', spec.run_id)[:8]}"


def _check_start_method(given: Given) -> None:
    text = given.text("start-method")
    if text is not None and text not in ("spawn", "fork", "forkserver"):
        raise given.complain("start-method", "the methods are spawn, fork and forkserver")


# --- numbers ---------------------------------------------------------------------------------------------


def _parse_interval(given: Given) -> float:
    seconds = _parse_seconds(given, "monitor-interval", DEFAULT_MONITOR_INTERVAL_S)
    if not seconds:
        raise given.complain("monitor-interval", "it must be a number of seconds above 0")
    return seconds


def _parse_grace(given: Given, machine: Machine) -> float:
    if given.has("shutdown-timeout"):
        return _parse_seconds(given, "shutdown-timeout", DEFAULT_STOP_GRACE_S)
    variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    text = machine.env.get(variable)
    if text is None:
        return DEFAULT_STOP_GRACE_S
    seconds = _to_float(text)
    if seconds is None or seconds < 0:
        where = f"{variable}={text} in the environment"
        raise FlagError(f"{where}: it must be a number of seconds from 0; correct or unset it")
    return seconds


def _parse_seconds(given: Given, name: str, default: float) -> float:
    text = given.text(name)
    if text is None:
        return default
    seconds = _to_float(text)
    if seconds is None or seconds < 0:
        raise given.complain(name, "it must be a number of seconds, not below 0")
    return seconds


def _parse_port(given: Given, name: str, default: int) -> int:
    text = given.text(name)
    if text is None:
        return default
    return _parse_int(given, name, range(_MAX_PORT + 1), f"a port from 0 to {_MAX_PORT}")


def _parse_count(given: Given, name: str, default: int, *, low: int = 0) -> int:
    text = given.text(name)
    if text is None:
        return default
    return _parse_int(given, name, range(low, _MAX_COUNT), f"a whole number from {low}")


def _parse_int(given: Given, name: str, allowed: range, rule: str) -> int:
    text = given.text(name) or ""
    if not _is_int(text) or int(text) not in allowed:
        raise given.complain(name, f"it must be {rule}")
    return int(text)


def _is_int(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text) is not None


def _to_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _strip_brackets(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host
