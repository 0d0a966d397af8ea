"""What undisturbed runs are compared with: the same script under torchrun, where nothing is recovered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.runs import DDP, STEPS, WORLD, Run, read_run

pytestmark = pytest.mark.slow


def test_an_undisturbed_run_equals_plain_torchrun(tmp_path: Path, undisturbed: Run) -> None:
    """The vote, the stable groups and the rest of being ready change no bit; and it says that it is off."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD))
    script = (DDP, "--out", str(tmp_path), "--steps", str(STEPS), "--pause", "0")
    env = {name: value for name, value in os.environ.items() if not name.startswith("TASKD_")}
    env["TMPDIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, *launcher, *script], env=env, capture_output=True, text=True, check=False, timeout=90
    )

    assert 0 == done.returncode, done.stderr
    assert undisturbed == read_run(tmp_path)
    assert done.stderr.count("recovery") >= 1
