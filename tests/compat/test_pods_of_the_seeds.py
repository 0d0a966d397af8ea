"""The seeds' way in pods of their own: torchrun and manager.py; pods are created again, or switched."""

import os
import shutil
from pathlib import Path

import pytest

from tests.compat.conftest import REPOSITORY, OwnTorch
from tests.pods.test_pods_training import STEPS, committed, undisturbed
from tests.pods.town import NEEDS, Pod, cpu_job, town
from tests.roles.harness import eventually
from tests.train.runs import DDP, Run, assert_same, pids_of

__all__ = ["undisturbed"]

pytestmark = [*NEEDS, pytest.mark.matrix]

SCRIPT = """\
import os, pathlib, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
here = pathlib.Path(__file__).parent
while True:
    total = torch.ones(1)
    dist.all_reduce(total)
    stop = torch.tensor([float((here / "enough").exists())])
    dist.broadcast(stop, 0)
    (here / f"alive-{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
    if stop.item():
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""


def test_the_new_manager_is_found_through_the_leader_s_service(patched: OwnTorch, tmp_path: Path) -> None:
    """It hears from the agent that is left how far the job was; all ranks restart, both pods end with 0."""
    code = tmp_path / "code"
    shutil.copytree(REPOSITORY / "examples" / "scripts", code / "scripts")
    (code / "main.py").write_text(SCRIPT)
    path = f"{patched.bin}:{os.environ['PATH']}"
    start = f"export PATH={path}; cd {code}; bash scripts/train_start.sh {code} {tmp_path}/output main.py"
    with town(tmp_path, cpu_job(1, 1), "bash", "-c", start) as place:
        worker, master = place.start(1), place.start(0)
        eventually(lambda: (code / "alive-1-0").exists() and (code / "alive-0-0").exists(), "steps", 120)
        master.kill()
        place.forget_leader()
        again = place.start(0, version=1)
        eventually(
            lambda: (code / "alive-1-1").exists() and (code / "alive-0-1").exists(), "steps again", 120
        )
        (code / "enough").touch()
        assert [0, 0] == [worker.wait(), again.wait()], worker.err + again.err


@pytest.mark.parametrize("rank", [1, 0], ids=["a-worker", "rank-0"])
def test_a_pod_is_switched_while_it_trains(
    patched: OwnTorch, tmp_path: Path, undisturbed: Run, rank: int
) -> None:
    """The new pod has the rank and the lines of the old one; it stands by and takes over, and the other goes.

    Where that was rank 0's, the manager goes with it: the one that waited in the new pod begins.
    """
    code, out = tmp_path / "code", tmp_path / "out"
    shutil.copytree(REPOSITORY / "examples" / "scripts", code / "scripts")
    shutil.copy(DDP, code / "main.py")
    path = f"{patched.bin}:{os.environ['PATH']}"
    words = f"main.py --out {out} --steps {STEPS} --pause 4"  # it is prepared meanwhile
    begin = f"export PATH={path} PYTHONPATH= TASKD_SPARES=1; cd {code}; "
    start = f"{begin}exec bash scripts/train_start.sh {code} {out} {words}"
    with town(tmp_path, cpu_job(1, 1, subHealthyStrategy="hotSwitch"), "bash", "-c", start) as place:
        pods = [place.start(0), place.start(1)]
        eventually(lambda: committed(out, 1) >= 1, "a step", 150)
        old = pods[rank]
        pods[rank] = place.start(rank, name=f"{old.name}-hot-ab12cd")
        manager = old if rank == 0 else pods[0]
        eventually(lambda: connected(manager) == 3, "the new pod to join", 150)
        manager.cli("switch", manager.job_name, "--node", str(rank))
        eventually(lambda: outcomes(manager) == ["switched"], "its first step", 150)
        old.terminate()
        if rank == 0:
            place.lead_to(pods[0])
        assert 143 == old.wait(60), old.err
        eventually(lambda: connected(pods[0]) == 2, "a manager with both", 60)
        (out / "hurry").touch()
        assert [0, 0] == [pod.wait(150) for pod in pods], [pod.out + pod.err for pod in place.pods]

    assert_same(undisturbed, out)
    assert 1 == len(pids_of(out, 1 - rank))


def outcomes(pod: Pod) -> list[str]:
    """How the last incident that a pod's manager knows of ended."""
    return [each["outcome"] for each in pod.timeline()[-1:]]


def connected(pod: Pod) -> int:
    """How many nodes a pod's manager has."""
    return sum(node["connected"] for node in pod.saved_status().get("nodes", ()))
