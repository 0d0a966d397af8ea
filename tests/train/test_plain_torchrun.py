"""The same script without ``taskd run``, where nothing is recovered: under torchrun, and by itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.runs import DDP, STEPS, WORLD, Run, read_run

pytestmark = pytest.mark.slow


def run_plainly(home: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    """Run the script with nothing of a launcher in its environment."""
    ours = ("TASKD_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"TMPDIR": str(home), "OMP_NUM_THREADS": "1"}  # which torchrun sets, too
    script = (DDP, "--out", str(home), "--steps", str(STEPS), "--pause", "0")
    return subprocess.run(
        [sys.executable, *launcher, *script], env=env, capture_output=True, text=True, check=False, timeout=90
    )


def test_an_undisturbed_run_equals_plain_torchrun(tmp_path: Path, undisturbed: Run) -> None:
    """The vote, the stable groups and the rest change no bit; one rank says, once, that recovery is off."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD))
    done = run_plainly(tmp_path, *torchrun)

    assert 0 == done.returncode, done.stderr
    assert undisturbed == read_run(tmp_path)
    assert 1 == done.stderr.count("recovery is off")


def test_a_script_without_a_launcher_is_a_job_of_one(tmp_path: Path) -> None:
    """It has a group of itself, does every step once, and there is nothing to warn of."""
    done = run_plainly(tmp_path)

    assert (0, "") == (done.returncode, done.stderr)
    ((losses, _),) = read_run(tmp_path, 1).values()
    assert list(range(STEPS)) == list(losses)
    assert not (tmp_path / "ledger-1.jsonl").exists()
