"""A job's directory as TaskD leaves it on a machine, without a job: what the commands read."""

import os
import subprocess
import sys
from pathlib import Path

from taskd.core.status import IncidentStatus, JobPhase, JobStatus, NodeStatus, RankStatus
from taskd.kit import jobs

TOKEN = "secret"  # noqa: S105


def taskd(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "taskd.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=20,
        env=os.environ | env,
        check=False,
    )


def make_status(home: Path, phase: JobPhase = JobPhase.ENDED) -> JobStatus:
    """Build the status of a job with two ranks, the second of which has been restarted once."""
    ranks = tuple(
        RankStatus(
            rank, rank, "node-0", 0, 100 + rank, "joined", 20, str(home / f"run/attempt_{rank}/{rank}")
        )
        for rank in range(2)
    )
    return JobStatus(
        job="train",
        phase=phase,
        reason="all [2] ranks finished",
        generation=2,
        restarts=1,
        max_restarts=32767,
        world_size=2,
        manager_pid=50,
        manager_addr="127.0.0.1:9601",
        started_stamp=1_700_000_000.0,
        stamp=1_700_000_100.0,
        nodes=(NodeStatus("node-0", 0, "host-a", 60, 61, "running", connected=True, faults=1),),
        ranks=ranks,
        last_fault="rank 1 was killed by SIGKILL at step 12",
        exit_code=0 if phase is JobPhase.ENDED else None,
    )


INCIDENT = IncidentStatus(
    number=1,
    stamp=1_700_000_050.0,
    kind="killed",
    what="rank 1 was killed by SIGKILL",
    rank=1,
    node="node-0",
    step=12,
    strategy="restart",
    reason="1 of 2 ranks lost; 1 of 32767 restarts used",
    outcome="recovered",
    generation=2,
    phases_ms={"join": 60.0, "detect": 1.25, "spawn": 38.75},
)


def write_job(home: Path, pid: int = 0, addr: str = "127.0.0.1:1", phase: JobPhase = JobPhase.ENDED) -> None:
    """Leave the directory of a job, finished unless a live pid is given."""
    ticks = jobs.read_start_ticks(pid) if pid else None
    jobs.open_job(jobs.JobRecord("train", pid, ticks or 0, addr, TOKEN, 1.0))
    jobs.write_status(make_status(home, phase))
    jobs.append_incident("train", INCIDENT)
