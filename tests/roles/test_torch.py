"""With real PyTorch: the same environment as torchrun's, restarts from warm processes, and the demo."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.roles.harness import running

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "demo"

DUMP = """\
import json, os, sys
with open(f"{os.environ['OUT']}-{os.environ['RANK']}.json", "w") as file:
    json.dump({"env": dict(os.environ), "argv": sys.argv, "path0": sys.path[0], "name": __name__}, file)
"""

# What differs between any two runs, or belongs to one launcher alone.
THEIR_OWN = re.compile(
    r"MASTER_(ADDR|PORT)|TORCHELASTIC_(RUN_ID|ERROR_FILE|MAX_RESTARTS|USE_AGENT_STORE|SIGNALS_TO_HANDLE)"
    r"|TASKD_.*|OUT|_|SHLVL|PWD|OLDPWD"
)


def test_workers_get_torchruns_environment(tmp_path: Path) -> None:
    """Variable by variable, except those that are different in every run; arguments and path too."""
    script = tmp_path / "dump.py"
    script.write_text(DUMP)
    args = ["--nproc-per-node", "2", str(script), "--lr", "1e-3", "x"]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--log-dir",
            str(tmp_path / "logs"),
            *args,
        ],
        env={**os.environ, "OUT": str(tmp_path / "theirs")},
        check=True,
        capture_output=True,
    )
    with running(tmp_path, *args, env={"OUT": str(tmp_path / "ours")}) as job:
        assert 0 == job.wait()

    for rank in range(2):
        theirs = json.loads((tmp_path / f"theirs-{rank}.json").read_text())
        ours = json.loads((tmp_path / f"ours-{rank}.json").read_text())
        for report in (theirs, ours):
            report["env"] = {k: v for k, v in report["env"].items() if not THEIR_OWN.fullmatch(k)}
        assert theirs == ours


def test_a_restart_from_warm_processes_trains_on(tmp_path: Path) -> None:
    """Not from memory, by wish: all ranks start again at the checkpoint, with torch imported already."""
    faults = tmp_path / "faults.jsonl"
    faults.write_text('{"step": 25, "rank": 0, "kind": "kill"}\n{"step": 33, "rank": 3, "kind": "exit"}\n')
    checkpoint = str(tmp_path / "last.pt")
    with running(
        tmp_path,
        *("--nproc-per-node", "4", "--spares", "2", "--faults", str(faults), "--recover-strategy", "exit"),
        *(str(DEMO / "train.py"), "--steps", "45", "--checkpoint", checkpoint),
    ) as job:
        assert 0 == job.wait(120)

    assert [0, 3] == [incident["rank"] for incident in job.timeline()]
    assert {"recovered"} == {incident["outcome"] for incident in job.timeline()}
    for rank in range(4):
        lives: dict[str, list[int]] = {}
        for pid, step in re.findall(rf"rank {rank} pid (\d+) step (\d+) loss", job.out):
            lives.setdefault(pid, []).append(int(step))
        assert [0, 20, 30] == [steps[0] for steps in lives.values()]
        assert 44 == list(lives.values())[-1][-1]
    nursery = (job.directory / "logs" / "roles" / "agent-0.log.nursery").read_text()
    assert "a fresh one is started" not in nursery


def test_the_demo_keeps_its_promise() -> None:
    """What the README's first command shows."""
    done = subprocess.run([sys.executable, DEMO / "demo.py"], capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "went on at step" in done.stdout
    assert "ranks that kept their processes: 0, 2, 3" in done.stdout
