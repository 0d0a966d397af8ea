"""The documented path: the seeds' sed line, manager.py, and plain torchrun."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from taskd.core.certificates import VARIABLE
from taskd.testing.kube.processes import free_port
from tests.compat.conftest import OwnTorch
from tests.links.papers import authority, job_papers

pytestmark = pytest.mark.slow

MANAGER = """\
from taskd.api import init_taskd_manager, start_taskd_manager
import os

job_id=os.getenv("MINDX_TASK_ID")
node_nums=1         # Total number of nodes (set by yourself)
proc_per_node=2     # Number of training processes on each node (set by yourself)

init_taskd_manager({"job_id":job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
"""

SEED_BLOCK = """\
TASKD_SO_PATH="$(pip show taskd | awk '/^Location: / {print $2"/taskd/python/cython_api/libs/libtaskd.so"}')"
export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD
export TASKD_PROCESS_ENABLE="on"
# PyTorch
if [[ "${RANK}" == 0 ]]; then
   export MASTER_ADDR=${POD_IP}
    python manager.py &           # Determined by the current path.
fi
"""

SCRIPT = """\
import json, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank, count = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(f"rank{rank}-{count}.json", "w") as file:
    json.dump({"pid": os.getpid(), "env": dict(os.environ), "sum": total.item()}, file)
if count == 0 and os.environ.get("DIE") == str(rank):
    os.kill(os.getpid(), 9)
code = int(os.environ.get("CODE", "0"))
if code and rank == 1:
    sys.exit(code)
if os.environ.get("DIE") and count == 0:
    dist.barrier()
dist.destroy_process_group()
"""


def environment(own: OwnTorch, home: Path, **more: str) -> dict[str, str]:
    """Return what a container would have."""
    port = free_port()
    return {
        **os.environ,
        "PATH": f"{own.bin}:{os.environ['PATH']}",
        "TASKD_HOME": str(home / "taskd"),
        "TASKD_MANAGER_PORT": str(port),
        "STORE_PORT": str(free_port()),
        "MINDX_TASK_ID": f"seed-{port}",
        "RANK": "0",
        "POD_IP": "127.0.0.1",
        **more,
    }


def run_block(own: OwnTorch, home: Path, block: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a shell block in a directory with manager.py and a training script."""
    (home / "manager.py").write_text(MANAGER)
    (home / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        ["bash", "-c", block],
        cwd=home,
        env=environment(own, home, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=100)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_the_seeds_sed_line_may_run_twice(patched: OwnTorch) -> None:
    """run.py still imports, and the import stands there twice without harm."""
    text = patched.run_py.read_text()

    assert 2 == text.count("import taskd.python.adaptor.patch\n")
    done = subprocess.run([patched.bin / "torchrun", "--help"], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr


@pytest.mark.parametrize(
    ("manager_first", "certified"),
    [(True, False), (False, False), (True, True)],
    ids=["manager first", "manager later", "with certificates"],
)
def test_the_seeds_block_recovers_a_killed_rank(
    patched: OwnTorch, tmp_path: Path, manager_first: bool, certified: bool
) -> None:
    """manager.py before or after torchrun: a killed rank costs a restart, and the job ends with 0."""
    more = {}
    if certified:
        papers = job_papers(tmp_path / "certificates", authority(), "3d5fe1c4-9d1f-4b8a-9f5e-0c7e1c3b2a10")
        more = {VARIABLE: papers.directory, "MINDX_TASK_ID": papers.identity}
    torchrun = "torchrun --log_dir logs --nproc_per_node 2 --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 "
    torchrun += "--master_port $STORE_PORT train.py"
    if manager_first:
        block = f"{SEED_BLOCK}\n{torchrun}"
    else:
        block = f"{torchrun} & TORCHRUN=$!\nsleep 0.5\n{SEED_BLOCK}\nwait $TORCHRUN"
    done = run_block(patched, tmp_path, block, DIE="1", **more)

    assert 0 == done.returncode, done.stderr
    again = [json.loads((tmp_path / f"rank{rank}-1.json").read_text()) for rank in range(2)]
    assert [2.0, 2.0] == [report["sum"] for report in again]
    assert "32767" == again[0]["env"]["TORCHELASTIC_MAX_RESTARTS"]
    assert "rank 1" in done.stderr
    assert "SIGKILL" in done.stderr


def test_without_a_manager_torchrun_is_stock(patched: OwnTorch, tmp_path: Path) -> None:
    """One warning within five seconds, then torch's own launcher."""
    started = time.monotonic()
    done = run_block(patched, tmp_path, "torchrun --log_dir logs --standalone --nproc_per_node 2 train.py")

    assert 0 == done.returncode, done.stderr
    assert 1 == done.stderr.count("no manager answers")
    report = json.loads((tmp_path / "rank0-0.json").read_text())
    assert "TASKD_PAGE" not in report["env"]
    assert "32767" == report["env"]["TORCHELASTIC_MAX_RESTARTS"]
    assert time.monotonic() - started < 90


@pytest.mark.parametrize(("flags", "expected"), [("--max_restarts 0", "0"), ("--max-restarts=5", "5")])
def test_the_users_max_restarts_is_kept(patched: OwnTorch, tmp_path: Path, flags: str, expected: str) -> None:
    """A given 0 means 0, although torch's own default is 0 too."""
    done = run_block(
        patched,
        tmp_path,
        f"torchrun --log_dir logs --standalone --nproc_per_node 1 {flags} train.py",
        TASKD_PROCESS_ENABLE="off",
    )

    assert 0 == done.returncode, done.stderr
    report = json.loads((tmp_path / "rank0-0.json").read_text())
    assert expected == report["env"]["TORCHELASTIC_MAX_RESTARTS"]


def test_a_preload_that_does_not_exist_costs_a_line(patched: OwnTorch, tmp_path: Path) -> None:
    """The seeds' libmspti is not here: the launcher drops it for the processes that it starts."""
    block = f"""{SEED_BLOCK}
export LD_PRELOAD=/usr/local/Ascend/cann/lib64/libmspti.so:$LD_PRELOAD
torchrun --log_dir logs --nproc_per_node 2 --nnodes 1 --node_rank 0 --master_addr 127.0.0.1 \\
    --master_port $STORE_PORT train.py"""
    done = run_block(patched, tmp_path, block)

    assert 0 == done.returncode, done.stderr
    report = json.loads((tmp_path / "rank0-0.json").read_text())
    assert "libmspti" not in report["env"]["LD_PRELOAD"]
    assert report["env"]["LD_PRELOAD"].rstrip(":").endswith("libtaskd.so")
    assert "left out" in done.stderr
