"""``init_taskd_agent``, ``register_func`` and ``start_taskd_agent``: an agent inside another launcher.

MindSpore's msrun, or a patched torchrun, keeps its processes and lends TaskD callbacks. The dictionary is
the reference system's. The proxy is always in the same container and is reached by its unix socket, which
``UpstreamPort`` names; ``UpstreamAddr`` is checked and not used.

What ``start_taskd_agent`` answers is the framework's convention: torch gets its ``RunResult``, and a process
of MindSpore ends, with 0 when all ranks have finished and with 1 when the job was given up.
"""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from taskd.agent.callbacks import Callback, MsrunHost, Operator
from taskd.core.exits import ExitCode
from taskd.core.launch import DEFAULT_MANAGER_PORT, LOCAL_HOST, JobOptions
from taskd.kit import jobs
from taskd.kit.container import DEFAULT_LISTEN_PORT, job_name, role_log, socket_path
from taskd.kit.dictconfig import (
    DictConfigError,
    Kinds,
    get,
    join_address,
    parse_address,
    parse_port,
    parse_rank,
    read_dict,
)
from taskd.kit.papers import PapersError, find_papers
from taskd.kit.sidecar import sidecar

if TYPE_CHECKING:  # loaded by need: a training script imports this module too
    from taskd.agent.callbacks import Host
    from taskd.agent.hosted import HostedAgent

INIT = "init_taskd_agent"
START = "start_taskd_agent"
REGISTER = "register_func"
PYTORCH, MINDSPORE = "PyTorch", "MindSpore"
FAULT_LIMITS_S = range(300, 601)

KINDS: Kinds = dict.fromkeys(("Framework", "UpstreamAddr", "UpstreamPort", "ServerRank"), str)

log = logging.getLogger("taskd")


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the caller's dictionary and the environment say, parsed."""

    framework: str
    node_rank: int
    job: str
    socket: str
    addr: str
    fault_limit_s: float = 0.0

    @classmethod
    def from_legacy(cls, raw: object, env: Mapping[str, str]) -> "AgentSettings":
        """Read the caller's dictionary and what the environment adds to it."""
        values = read_dict(INIT, raw, KINDS)
        framework = get(values, "Framework", str, "")
        if framework not in (PYTORCH, MINDSPORE):
            raise DictConfigError(f"{INIT}: Framework is {framework!r}; give {PYTORCH!r} or {MINDSPORE!r}")
        parse_address(INIT, "UpstreamAddr", get(values, "UpstreamAddr", str, LOCAL_HOST))
        port = parse_port(INIT, "UpstreamPort", get(values, "UpstreamPort", str, DEFAULT_LISTEN_PORT))
        default_rank = env.get("RANK" if framework == PYTORCH else "MS_NODE_RANK") or "0"
        job = job_name(env)
        try:
            jobs.job_dir(job)
        except jobs.JobLookupError as error:
            raise DictConfigError(f"{INIT}: MINDX_TASK_ID is {job!r}; give a name without '/'") from error
        return cls(
            framework=framework,
            node_rank=parse_rank(INIT, "ServerRank", get(values, "ServerRank", str, default_rank)),
            job=job,
            socket=socket_path(str(port)),
            addr=env.get("POD_IP", "").strip("[] ") or LOCAL_HOST,
            fault_limit_s=_fault_limit(env),
        )


def _fault_limit(env: Mapping[str, str]) -> float:
    """Read TASKD_REPORT_FAULT_TIMEOUT; what is outside its range turns the limit off."""
    limit = _number(env, "TASKD_REPORT_FAULT_TIMEOUT")
    return float(limit) if limit in FAULT_LIMITS_S else 0.0


def _number(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else 0


@dataclass(slots=True)
class _Agent:
    """This process's agent: what it was told, and the callbacks it was lent."""

    settings: AgentSettings
    elastic: object = None
    callbacks: dict[Operator, Callback] = field(default_factory=dict)


_agent: _Agent | None = None


def init_taskd_agent(config: dict[str, object], cls: object = None) -> bool:
    """Take the agent's configuration; False, and a line in the log, if it is wrong.

    ``cls`` is torch's elastic agent, which the framework PyTorch needs.
    """
    global _agent  # noqa: PLW0603 - a process has one agent
    try:
        settings = AgentSettings.from_legacy(config, os.environ)
        if settings.framework == PYTORCH:
            _check_elastic(cls)
        else:
            _start_proxy(settings, os.environ)
    except DictConfigError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is the whole story
        return False
    _agent = _Agent(settings, cls)
    return True


def register_func(operator: str, func: Callback) -> bool:
    """Lend the agent a callback; False, and a line in the log, if there is no agent or no such operator."""
    if _agent is None:
        log.error("%s: there is no agent; call %s first and look at its answer", REGISTER, INIT)
        return False
    if operator not in list(Operator):
        log.error("%s: there is no operator %r; known are %s", REGISTER, operator, ", ".join(Operator))
        return False
    if not callable(func):
        log.error("%s: what was given for %s cannot be called: %r; give a function", REGISTER, operator, func)
        return False
    _agent.callbacks[Operator(operator)] = func
    return True


def start_taskd_agent() -> object:
    """Run the agent in the calling thread until the job is over for this node.

    None without an agent. Otherwise torch's ``RunResult``, or, with MindSpore, the end of this process.
    """
    if _agent is None:
        log.error("%s: there is no agent; call %s first and look at its answer", START, INIT)
        return None
    if _agent.settings.framework == PYTORCH:
        from taskd.agent.torch.elastic import ElasticHost

        torch_host = ElasticHost(_agent.elastic, _agent.callbacks)
        nodes, max_restarts = torch_host.nodes, torch_host.max_restarts
        options = JobOptions(min_nodes=nodes, max_nodes=nodes, max_restarts=max_restarts)
        leave = _make(_agent.settings, torch_host, torch_host.local_world, options).run()
        return torch_host.make_result(leave.code)
    msrun = MsrunHost(_agent.callbacks, _number(os.environ, "MS_LOCAL_WORKER"))
    if not msrun.local_world:
        log.error("%s: MS_LOCAL_WORKER is not set and MONITOR names no process; set it", START)
        return None
    nodes = max(1, _number(os.environ, "MS_WORKER_NUM") // msrun.local_world)
    options = JobOptions(min_nodes=nodes, max_nodes=nodes)
    leave = _make(_agent.settings, msrun, msrun.local_world, options).run()
    if leave.code != ExitCode.OK:
        log.error("%s: the job was given up: %s", START, leave.reason)
    raise SystemExit(ExitCode.OK if leave.code == ExitCode.OK else ExitCode.FAILED)


def _check_elastic(agent: object) -> None:
    if not hasattr(agent, "get_worker_group"):  # torch is not imported to ask a question
        raise DictConfigError(f"{INIT}: cls is {agent!r}; PyTorch needs its SimpleElasticAgent there")


def _make(settings: AgentSettings, host: "Host", local_world: int, options: JobOptions) -> "HostedAgent":
    from taskd.agent.hosted import HostedAgent, HostedConfig
    from taskd.kit.logs import open_log

    node = str(settings.node_rank)
    config = HostedConfig(
        job=settings.job,
        node=node,
        wants_rank=settings.node_rank,
        addr=settings.addr,
        socket=settings.socket,
        local_world=local_world,
        options=options,
        ledger_file=str(jobs.job_dir(settings.job) / "ledger" / f"{node}.jsonl"),
        fault_limit_s=settings.fault_limit_s,
    )
    record = open_log(role_log(f"agent-{node}.log", os.environ), role="agent", job=settings.job, node=node)
    return HostedAgent(config, host, record, on_absent=sidecar.revive)


def _start_proxy(settings: AgentSettings, env: Mapping[str, str]) -> None:
    """Start the container's proxy unless there is one; nobody else does it for an msrun.

    It does not wait: the agent keeps knocking at its door.
    """
    if sidecar.wanted:
        return
    # Not looked up: the name of a scheduler that has not started yet may not resolve until it has.
    host = env.get("MS_SCHED_HOST", "").strip("[] ") or LOCAL_HOST
    if env.get("LOCAL_PROXY_ENABLE") == "on":
        host = LOCAL_HOST
    port_text = env.get("TASKD_MANAGER_PORT", "").strip() or str(DEFAULT_MANAGER_PORT)
    node = str(settings.node_rank)
    try:
        papers = find_papers(env)
    except PapersError as error:
        log.warning("%s: no proxy of its own: %s", INIT, error)
        return
    problem = sidecar.start(
        {
            "job": settings.job,
            "node": node,
            "manager": join_address(host, parse_port(INIT, "TASKD_MANAGER_PORT", port_text)),
            "socket": settings.socket,
            "token": env.get("TASKD_TOKEN", ""),
            "papers": asdict(papers),
            "log_file": role_log(f"taskd-proxy-{node}-{int(time.time())}.log", env),
        },
        wait_s=0.0,
    )
    if problem:
        log.warning("%s: no proxy of its own: %s", INIT, problem)
