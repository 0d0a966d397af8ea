"""From a plan to the processes of one node: their environment, their files, their place on the console."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from taskd.agent.config import AgentConfig
from taskd.agent.nursery import WorkerLaunch
from taskd.core.launch import LaunchSpec, NodePlace, Plan, ScheduledFault, compute_worker_env
from taskd.core.programs import Program

STDOUT, STDERR = 1, 2
EVERY = -1
LEAST_ANSWER_S, MOST_ANSWER_S = 300, 600


def answer_limit_s(env: Mapping[str, str]) -> float:
    """Return how long an agent waits for a decision about a failed rank; 0 is for ever."""
    raw = env.get("TASKD_REPORT_FAULT_TIMEOUT", "")
    limit = int(raw) if raw.isdigit() else 0
    return float(limit) if LEAST_ANSWER_S <= limit <= MOST_ANSWER_S else 0.0


@dataclass(frozen=True, slots=True)
class RankFiles:
    """Where one rank's output and error go."""

    directory: str
    stdout: str
    stderr: str
    error_file: str
    page: str
    slot: str
    slot_before: str = ""


def rank_files(
    config: AgentConfig,
    plan: Plan,
    place: NodePlace,
    local_rank: int,
    before: RankFiles | None = None,
    *,
    standby: bool = False,
) -> RankFiles:
    """Name the files of a rank, in torchrun's layout: one directory per attempt and local rank.

    The attempt counts generations: a rank that was replaced alone has one of its own. What is in shared
    memory goes over from a dead process (its files are ``before``) to the one that replaces it. A standby
    lives beside the process whose rank it will have, so it has its own there, and is told of the other's.
    """
    root = Path(config.spec.logs.directory or config.logs_dir) / config.spec.run_id
    if len(plan.places) > 1:
        # The nodes may be on one machine, or on several with one file system.
        root /= f"node_{place.node_rank}"
    directory = root / f"attempt_{plan.generation - 1}" / str(local_rank)
    name = f"rank-{place.first_rank + local_rank}" + (f"-g{plan.generation}" if standby else "")
    memory = Path(config.shm_dir) / name
    page, slot, slot_before = f"{memory}.page", f"{memory}.slot", ""
    if before is not None:
        slot_before = before.slot if standby else before.slot_before
        page, slot = (page, slot) if standby else (before.page, before.slot)
    return RankFiles(
        str(directory),
        str(directory / "stdout.log"),
        str(directory / "stderr.log"),
        str(directory / "error.json"),
        page,
        slot,
        slot_before,
    )


def make_launch(
    config: AgentConfig,
    plan: Plan,
    place: NodePlace,
    local_rank: int,
    base: Mapping[str, str],
    cwd: str,
    files: RankFiles,
) -> WorkerLaunch:
    """Make the order by which one worker is born."""
    rank = place.first_rank + local_rank
    env = dict(base)
    env.update(compute_worker_env(config.spec, plan, place, local_rank))
    env.update(
        {
            "TORCHELASTIC_ERROR_FILE": files.error_file,
            "TASKD_JOB": config.spec.job,
            "TASKD_NODE": config.node,
            "TASKD_GENERATION": str(plan.generation),
            "TASKD_BEGAN": str(plan.began),
            "TASKD_SOCKET": config.socket,
            "TASKD_PAGE": files.page,
            "TASKD_SLOT": files.slot,
            "TASKD_SLOT_BEFORE": files.slot_before,
            "TASKD_SHM_DIR": config.shm_dir,
            "TASKD_DUMP_DIR": config.dump_dir,
            "TASKD_RESUME": config.spec.resume_dir,
            "TASKD_FIRED_DIR": config.fired_dir,
        }
    )
    if config.own_tmp:
        env["TMPDIR"] = config.tmp_dir
    faults = [fault for fault in config.spec.faults if _triggered_by(fault, place, rank)]
    if faults:
        env["TASKD_FAULTS"] = json.dumps([dataclasses.asdict(fault) for fault in faults])
    return WorkerLaunch(
        key=f"g{plan.generation}/r{rank}",
        program=_substitute(config.spec, local_rank),
        env=env,
        cwd=cwd,
        stdout=files.stdout,
        stderr=files.stderr,
        error_file=files.error_file,
    )


def with_newcomer(launch: WorkerLaunch, *, standby: bool = False) -> WorkerLaunch:
    """Return the launch of a rank that comes into a running job, or waits to."""
    newcomer = {"TASKD_NEWCOMER": "1", **({"TASKD_STANDBY": "1"} if standby else {})}
    return dataclasses.replace(launch, env={**launch.env, **newcomer})


def clear_memory(shm_dir: str, rank: int) -> None:
    """Remove what the processes of a rank left in the node's memory, for a run that begins anew.

    Its notes are written anew, and say of which run they are; what this node keeps for other ranks is theirs.
    """
    for path in Path(shm_dir).glob(f"rank-{rank}-g*"):
        path.unlink(missing_ok=True)
    (Path(shm_dir) / f"rank-{rank}.slot").unlink(missing_ok=True)


def _triggered_by(fault: ScheduledFault, place: NodePlace, rank: int) -> bool:
    """Tell whether this rank does the fault, or gives the sign for it."""
    if fault.rank >= 0:
        return fault.rank == rank
    if fault.node >= 0:
        return place.node_rank == fault.node and rank == place.first_rank
    return rank == 0


def _substitute(spec: LaunchSpec, local_rank: int) -> Program:
    """Put the local rank into the arguments where torchrun's macro asks for it."""
    args = tuple(Template(arg).safe_substitute(local_rank=str(local_rank)) for arg in spec.program.args)
    return dataclasses.replace(spec.program, args=args)


@dataclass(frozen=True, slots=True)
class ConsoleView:
    """Whether a stream of a rank is shown, and with what in front of each line."""

    shown: bool
    prefix: str = ""


def console_view(spec: LaunchSpec, rank: int, local_rank: int, stream: int, host: str) -> ConsoleView:
    """Decide how a stream appears on the console, as torchrun's flags say."""
    logs = spec.logs
    teed = bool(logs.tee.get(local_rank, logs.tee.get(EVERY, 0)) & stream)
    redirected = bool(logs.redirects.get(local_rank, logs.redirects.get(EVERY, 0)) & stream)
    if logs.show_local_ranks and local_rank not in logs.show_local_ranks:
        return ConsoleView(shown=False)
    if not teed:
        return ConsoleView(shown=not redirected)
    template = logs.prefix_template or "[${role_name}${local_rank}]:"
    prefix = Template(template).safe_substitute(
        role_name=spec.role, rank=rank, local_rank=local_rank, hostname=host
    )
    return ConsoleView(shown=True, prefix=prefix)
