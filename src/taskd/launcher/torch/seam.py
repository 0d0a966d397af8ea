"""Turn plain ``torchrun`` into TaskD's launcher, through one seam.

torchrun ends in ``launch_agent(config, entrypoint, args)``; that one function is replaced, and only after its
signature was checked. What TaskD cannot do (a Python function as entry point, no manager to be reached) goes
to the original, so a patched torchrun without TaskD's manager is a stock torchrun with one warning.

The new pod of a hot switch has the rank and the environment of the pod that it relieves. There torchrun joins
as a node that stands by, as ``taskd run`` does; as a node of that rank it would push the other one out.
"""

import argparse
import asyncio
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import taskd
from taskd.core.exits import ExitCode
from taskd.core.hccl import VariableError
from taskd.core.launch import (
    DEFAULT_MANAGER_PORT,
    DEFAULT_MAX_RESTARTS,
    DEFAULT_MONITOR_INTERVAL_S,
    LOCAL_HOST,
    LaunchSpec,
    LogSettings,
)
from taskd.core.podplace import SPARE, leader_host, read_pod, standby_node
from taskd.core.programs import Program, ProgramKind
from taskd.core.variables import read_variables
from taskd.launcher.launcher import Launcher, prepare_environment
from taskd.launcher.notices import say
from taskd.launcher.topology import LaunchError, LocalNode, Topology, own_address

MARK = "__taskd__"
EXPECTED = ("config", "entrypoint", "args")
NEEDED = (
    "min_nodes",
    "max_nodes",
    "nproc_per_node",
    "run_id",
    "rdzv_endpoint",
    "rdzv_configs",
    "max_restarts",
)
REACH_S = 4.0
KNOCK_S = 2.0
START_S = 900.0
TORCH_MONITOR_INTERVAL_S = 0.1

Launch = Callable[..., dict[int, Any]]


def apply() -> None:
    """Replace torch's ``launch_agent``; a second call changes nothing."""
    from torch.distributed.launcher import api

    original: Launch = api.launch_agent
    if hasattr(original, MARK):
        return
    misfit = _find_misfit(original, api.LaunchConfig)

    def launch_agent(
        config: Any,  # noqa: ANN401 - torch's own types
        entrypoint: Any,  # noqa: ANN401
        args: list[Any],
        *more: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> dict[int, Any]:
        if misfit:
            say(f"{misfit}; remove the import of taskd.python.adaptor.patch from run.py or update TaskD")
            raise SystemExit(ExitCode.USAGE)
        return _launch(original, config, entrypoint, args, more, named)

    setattr(launch_agent, MARK, original)
    api.launch_agent = launch_agent


def _find_misfit(function: Launch, config_type: type) -> str:
    """Say how this torch differs from what the seam was written for; empty if it fits."""
    import torch

    parameters = tuple(inspect.signature(function).parameters)
    if parameters[: len(EXPECTED)] != EXPECTED:
        return f"torch {torch.__version__} has launch_agent{parameters}, and TaskD expects {EXPECTED} first"
    fields = getattr(config_type, "__dataclass_fields__", {})
    missing = [name for name in NEEDED if name not in fields]
    return f"torch {torch.__version__} has no LaunchConfig.{missing[0]}" if missing else ""


def _launch(
    original: Launch,
    config: Any,  # noqa: ANN401 - torch's own types
    entrypoint: Any,  # noqa: ANN401
    args: list[Any],
    more: tuple[Any, ...],
    named: Mapping[str, Any],
) -> dict[int, Any]:
    if config.max_restarts == 0 and not _user_set("max_restarts"):
        config.max_restarts = DEFAULT_MAX_RESTARTS
    if os.environ.get("TASKD_PROCESS_ENABLE") == "off" or not isinstance(entrypoint, str):
        return original(config, entrypoint, args, *more, **named)
    if os.environ.get(SPARE) == "1":
        say("a pod that stands by starts its training with `taskd run`; torchrun would take a rank for it")
        raise SystemExit(ExitCode.USAGE)
    standing_by = _stands_by()
    host, port = _manager_address(config, standing_by=standing_by)
    if not _reachable(host, port, _patience(config, standing_by=standing_by)):
        if standing_by:
            say(f"no manager answers at {host}:{port}, and a pod that stands by is of no use without")
            raise SystemExit(ExitCode.NODES_MISSING)
        say(
            f"no manager answers at {host}:{port}, so torchrun goes on without TaskD; start manager.py on "
            "node 0, or set TASKD_PROCESS_ENABLE=off to silence this"
        )
        return original(config, entrypoint, args, *more, **named)
    try:
        spec = spec_from_config(config, entrypoint, [str(arg) for arg in args], host, port)
        prepare_environment()
        _note_missing_library()
        node = _node(spec, config.local_addr or own_address(host), standing_by=standing_by)
        topology = Topology(hosts_manager=False, manager_host=host, manager_port=port, nodes=(node,))
        code = asyncio.run(_run(spec, topology))
    except LaunchError as error:
        say(str(error))
        code = ExitCode.USAGE
    if code:
        raise SystemExit(code)
    return {}


def _stands_by() -> bool:
    """Tell whether this pod has the rank of another one that still trains."""
    try:
        facts = read_pod(os.environ, socket.gethostname(), counted=True)
    except VariableError as error:
        say(str(error))
        raise SystemExit(ExitCode.USAGE) from error
    return facts is not None and facts.place.spare


def _node(spec: LaunchSpec, address: str, *, standing_by: bool) -> LocalNode:
    if standing_by:
        return LocalNode(standby_node(socket.gethostname()), -1, address, spare=True)
    key = str(spec.node_rank) if spec.node_rank >= 0 else f"{socket.gethostname()}-{os.getpid()}"
    return LocalNode(key, spec.node_rank, address)


def _note_missing_library() -> None:
    """Say what images made for the reference system look for, if this install has no libtaskd.so."""
    library = Path(taskd.__file__).parent / "python" / "cython_api" / "libs" / "libtaskd.so"
    if not library.exists():
        say(
            "the libtaskd.so has not been loaded (it was not built: no C compiler was there); TaskD goes on "
            f"without it. With a compiler, install again, then: export LD_PRELOAD={library}:$LD_PRELOAD"
        )


async def _run(spec: LaunchSpec, topology: Topology) -> int:
    return await Launcher(spec, topology, external_manager=True).run()


def spec_from_config(config: Any, entrypoint: str, args: list[str], host: str, port: int) -> LaunchSpec:  # noqa: ANN401
    """Say in TaskD's words what torchrun parsed."""
    static = config.rdzv_backend == "static"
    master_addr, master_port = "", 0
    if static and config.rdzv_endpoint:
        master_addr, _, raw_port = config.rdzv_endpoint.rpartition(":")
        master_port = int(raw_port)
    interval = config.monitor_interval
    if interval == TORCH_MONITOR_INTERVAL_S and not _user_set("monitor_interval"):
        interval = DEFAULT_MONITOR_INTERVAL_S
    spec = LaunchSpec(
        job=os.environ.get("MINDX_TASK_ID") or "default",
        program=_program(entrypoint, args),
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_world=config.nproc_per_node,
        node_rank=int(config.rdzv_configs.get("rank", 0)) if static or config.max_nodes == 1 else -1,
        local_nodes=1,
        master_addr=master_addr.strip("[]"),
        master_port=master_port,
        manager_port=port,
        role=config.role,
        max_restarts=config.max_restarts,
        monitor_interval_s=interval,
        join_timeout_s=float(config.rdzv_configs.get("timeout", 900)),
        spares=_spares(),
        logs=_logs(config.logs_specs),
        rdzv_backend=config.rdzv_backend,
        rdzv_endpoint=config.rdzv_endpoint,
        local_addr=config.local_addr or "",
    )
    try:
        found = read_variables(os.environ, config.max_nodes * config.nproc_per_node)
    except VariableError as error:
        raise LaunchError(str(error)) from error
    spec = replace(
        spec,
        faults=found.faults,
        hang_floor_s=found.hang_floor_s,
        hang_ceiling_s=found.hang_ceiling_s,
    )
    grace = getattr(config, "shutdown_timeout", None)
    if grace is not None:
        spec = replace(spec, stop_grace_s=float(grace))
    return replace(spec, master_addr=spec.master_addr or host)


def _program(entrypoint: str, args: list[str]) -> Program:
    if entrypoint != sys.executable or not args or args[0] != "-u":
        return Program(ProgramKind.COMMAND, entrypoint, tuple(args))
    if args[1:2] == ["-m"]:
        return Program(ProgramKind.MODULE, args[2], tuple(args[3:]))
    return Program(ProgramKind.SCRIPT, args[1], tuple(args[2:]))


def _logs(specs: Any) -> LogSettings:  # noqa: ANN401 - torch's own type
    root = getattr(specs, "root_log_dir", None) or ""
    shown = getattr(specs, "_local_ranks_filter", None) or ()
    return LogSettings(
        directory=str(root),
        redirects=_bits(getattr(specs, "_redirects", 0)),
        tee=_bits(getattr(specs, "_tee", 0)),
        show_local_ranks=tuple(sorted(shown)),
    )


def _bits(streams: Any) -> dict[int, int]:  # noqa: ANN401 - torch's Std, or a dict of them
    if isinstance(streams, dict):
        return {int(rank): int(bits) for rank, bits in streams.items()}
    return {-1: int(streams)}


def _spares() -> int:
    raw = os.environ.get("TASKD_SPARES", "0")
    if not raw.isdigit():
        raise LaunchError(f"TASKD_SPARES={raw} is not a count; give a number or unset it")
    return int(raw)


def _user_set(name: str) -> bool:
    """Tell whether the user gave a flag of torchrun; torch cannot tell a given 0 from its default 0."""
    if f"PET_{name.upper()}" in os.environ:
        return True
    for module in ("torch.distributed.run", "__main__"):
        make_parser = getattr(sys.modules.get(module), "get_args_parser", None)
        if make_parser is None:
            continue
        parser: argparse.ArgumentParser = make_parser()
        parser.set_defaults(**{name: None})
        try:
            known, _ = parser.parse_known_args(sys.argv[1:])
        except SystemExit:
            continue
        return getattr(known, name, None) is not None
    return any(arg.startswith((f"--{name}", f"--{name.replace('_', '-')}")) for arg in sys.argv[1:])


def _manager_address(config: Any, *, standing_by: bool = False) -> tuple[str, int]:  # noqa: ANN401
    # The guides' script has put rank 0's own address there, and whoever stands by has no manager yet.
    host = leader_host(os.environ) if standing_by else os.environ.get("MASTER_ADDR", "")
    if not host and config.rdzv_backend == "static" and config.rdzv_endpoint:
        host = config.rdzv_endpoint.rpartition(":")[0].strip("[]")
    if os.environ.get("LOCAL_PROXY_ENABLE") == "on" or not host:
        host = LOCAL_HOST
    raw = os.environ.get("TASKD_MANAGER_PORT", "")
    return host, int(raw) if raw.isdigit() else DEFAULT_MANAGER_PORT


def _patience(config: Any, *, standing_by: bool = False) -> float:  # noqa: ANN401
    """Say for how long a manager is waited for.

    Who exports TASKD_PROCESS_ENABLE=on, as the guides do, has one, but in a cluster its pod may start minutes
    later; going on without it would leave half of the job with it and half without.
    """
    alone = os.environ.get("TASKD_PROCESS_ENABLE") != "on" or config.max_nodes == 1
    if alone and not standing_by:
        return REACH_S
    return float(config.rdzv_configs.get("timeout", START_S))


def _reachable(host: str, port: int, limit_s: float) -> bool:
    """Knock until somebody answers: manager.py may be started a moment after torchrun."""
    deadline = time.monotonic() + limit_s
    tell_at = time.monotonic() + REACH_S
    while True:
        if limit_s > REACH_S and time.monotonic() > tell_at:
            say(f"no manager answers at {host}:{port} yet; waiting for it for up to {limit_s:g} s")
            tell_at = deadline
        try:
            with socket.create_connection(
                (host, port), timeout=min(KNOCK_S, max(0.1, deadline - time.monotonic()))
            ):
                return True
        except OSError:
            if time.monotonic() + 0.1 > deadline:
                return False
            time.sleep(0.1)
