"""``taskd run`` of a job that has certificates: its parts speak TLS, whoever dies and whatever is renewed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from taskd.cli import client
from taskd.cli.errors import ManagerUnreachable
from taskd.core.certificates import VARIABLE
from taskd.kit import jobs
from tests.links.papers import authority, job_papers, leaf, show
from tests.roles.harness import RunningJob, eventually, running

pytestmark = pytest.mark.slow

STEPS = str(Path(__file__).with_name("steps.py"))
IDENTITY = "3d5fe1c4-9d1f-4b8a-9f5e-0c7e1c3b2a10"


def variables(home: Path) -> dict[str, str]:
    return {VARIABLE: str(home), "MINDX_TASK_ID": IDENTITY}


def test_a_job_runs_with_its_certificates(tmp_path: Path) -> None:
    """A manager and a proxy that are killed come back, a renewal in between; nobody speaks in the clear."""
    signer, home = authority(), tmp_path / "certificates"
    job_papers(home, signer, IDENTITY)
    with running(tmp_path, "--nproc-per-node", "2", STEPS, "6000", "0.02", env=variables(home)) as job:
        job.at_step(5)
        assert "running" == job.status()["phase"]
        with pytest.raises(ManagerUnreachable):
            client.call(record(job).manager_addr, record(job).token, "status", {}, 2.0)
        before = job.pids()
        successor = authority()
        show(home, leaf(signer, IDENTITY), [signer, successor])
        show(home, leaf(successor, IDENTITY), [successor])
        for role in ("manager", "proxy"):
            status = eventually(job.status, "the manager's answer")
            victim = status["manager_pid"] if role == "manager" else status["nodes"][0]["proxy_pid"]
            os.kill(victim, signal.SIGKILL)
            eventually(
                lambda: job.status().get("phase") == "running", f"the job after the death of its {role}"
            )
        assert before == job.pids()
        job.cli("stop", "job")
        job.wait()


def test_certificates_that_cannot_be_read_end_the_job_at_once(tmp_path: Path) -> None:
    """With the file that is missing, and without a word in the clear."""
    done = subprocess.run(
        [sys.executable, "-m", "taskd.cli.main", "run", "--job", "job", STEPS, "1", "0"],
        env={**os.environ, "TASKD_HOME": str(tmp_path / "taskd"), **variables(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    shutil.rmtree(tmp_path / "taskd", ignore_errors=True)

    assert 2 == done.returncode
    assert "ca.crt" in done.stderr
    assert "Traceback" not in done.stderr


def record(job: RunningJob) -> jobs.JobRecord:
    return msgspec.json.decode((job.directory / "job.json").read_bytes(), type=jobs.JobRecord)
