"""The seeds' way in pods of their own: torchrun and manager.py, and rank 0's pod is created again."""

import os
import shutil
from pathlib import Path

import pytest

from tests.compat.conftest import REPOSITORY, OwnTorch
from tests.pods.town import NEEDS, cpu_job, town
from tests.roles.harness import eventually

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
