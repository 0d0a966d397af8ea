"""What is in examples/ for the seeds' way: the image's lines, train_start.sh and manager.py, run for real."""

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest

from taskd.core.acjob.environment import Addresses
from taskd.core.acjob.job import Slot
from taskd.core.acjob.pods import PodMaker
from taskd.testing.kube.processes import free_port
from tests.compat.conftest import REPOSITORY, SEED_SED, OwnTorch, make_own_torch
from tests.compat.test_torchrun import SCRIPT, environment
from tests.pods.town import cpu_job
from tests.pods.town import environment as operator_s

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "examples"
# Of the published sample, as in its args.
S4_ARGS = (
    "main.py --data=/job/data/resnet50/imagenet --amp --arch=resnet50 --seed=49 -j=128 --world-size=1 "
    "--lr=1.6 --dist-backend='hccl' --multiprocessing-distributed --epochs=90 --batch-size=4096"
)


def instructions() -> list[tuple[str, str]]:
    """Read the image's recipe as pairs of instruction and arguments."""
    text = re.sub(
        r"\\\n", " ", re.sub(r"^#.*\n", "", (EXAMPLES / "Dockerfile").read_text(), flags=re.MULTILINE)
    )
    lines = [line for line in text.splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def make_mindio(directory: Path) -> Path:
    """Make a wheel that stands for MindIO's: a name, a version, a module."""
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / "mindio_ttp-1.0-py3-none-any.whl"
    files = {
        "mindio_ttp/__init__.py": "",
        "mindio_ttp-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mindio_ttp\nVersion: 1.0\n",
        "mindio_ttp-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        f"{len(text)}\n"
        for name, text in files.items()
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, "mindio_ttp-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    return wheel


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> OwnTorch:
    """A framework's image: torch, pip and what TaskD needs, without TaskD."""
    return make_own_torch(tmp_path_factory.mktemp("bare"))


def test_the_recipe_is_well_formed() -> None:
    """Known instructions, a base without a registry, each variable declared before it is used."""
    found = instructions()
    declared: set[str] = set()
    for name, words in found:
        assert name in {"ARG", "FROM", "WORKDIR", "COPY", "RUN"}
        if name == "ARG":
            declared.add(words.partition("=")[0])
        used = set(re.findall(r"\$\{?([A-Z_]{3,})", words))
        assert used <= declared, words
    assert 1 == sum(name == "FROM" for name, _ in found)
    assert ("ARG", "BASE=pytorch-base:latest") == found[0]
    assert SEED_SED in [words for name, words in found if name == "RUN"]


@pytest.mark.parametrize("turned", [False, True], ids=["taskd-first", "mindio-first"])
@pytest.mark.parametrize("with_mindio", [False, True], ids=["empty", "a-wheel"])
def test_s2_16_the_image_s_lines_run(
    bare: OwnTorch, wheel: Path, tmp_path: Path, with_mindio: bool, turned: bool
) -> None:
    """With MINDIO_TTP_PKG empty or a wheel, in either order; afterwards torchrun is patched and imports."""
    lines = [words for name, words in instructions() if name == "RUN"]
    if turned:
        lines[0], lines[1] = lines[1], lines[0]
    mindio = str(make_mindio(tmp_path / "wheels")) if with_mindio else ""
    env = {**os.environ, "PATH": f"{bare.bin}:{os.environ['PATH']}", "PIP_NO_INDEX": "1"}
    env |= {"TASKD_WHL": str(wheel), "MINDIO_TTP_PKG": mindio}
    before = bare.run_py.read_text()
    try:
        for line in lines:
            here = line.replace("/job/", f"{tmp_path}/job/")
            done = subprocess.run(
                ["sh", "-c", here], cwd=EXAMPLES, env=env, capture_output=True, text=True, check=False
            )
            assert 0 == done.returncode, f"{line}\n{done.stdout}{done.stderr}"
        assert "import taskd.python.adaptor.patch\n" in bare.run_py.read_text()
        asked = "import taskd.api, torch.distributed.run"
        subprocess.run([bare.bin / "python", "-c", asked + (", mindio_ttp" if mindio else "")], check=True)
        made = sorted(path.name for path in (tmp_path / "job/code/scripts").iterdir())
        assert ["manager.py", "train_start.sh"] == made
    finally:
        bare.run_py.unlink()
        bare.run_py.write_text(before)
        subprocess.run([bare.bin / "pip", "uninstall", "-qy", "taskd", "mindio_ttp"], check=True)


class Container:
    """A pod's container in a directory: the job's args run there, with the operator's environment."""

    def __init__(self, own: OwnTorch, root: Path, rank: int, pods: int, **more: str) -> None:
        self.root = root
        code = root / "job" / "code"
        if not code.exists():
            shutil.copytree(EXAMPLES / "scripts", code / "scripts")
            (code / "main.py").write_text(SCRIPT)
        maker = PodMaker(cpu_job(pods - 1, 1), Addresses("127.0.0.1"), gang=False)
        slot = Slot("Worker", rank - 1) if rank else Slot("Master", 0)
        self.env = {**environment(own, root), **operator_s(maker.pod(slot, 0), "127.0.0.1"), **more}
        self.env["TASKD_HOME"] = str(root / f"home-{rank}")
        # It has this machine's host name: whoever is not called as its rank's pod stands by.
        del self.env["TASKD_PEERS"]

    def start(self, args: str) -> "subprocess.Popen[str]":
        """Run the container's command."""
        words = ["/bin/bash", "-c", args.replace("/job/", f"{self.root}/job/")]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, env=self.env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for a container's end, and leave nothing."""
    try:
        out, err = process.communicate(timeout=100)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def ports() -> dict[str, str]:
    """Two ports that nobody else uses, for the manager and for the ranks to meet."""
    return {"TASKD_MANAGER_PORT": str(free_port()), "MASTER_PORT": str(free_port())}


def test_s4_20_the_sample_s_command_trains(patched: OwnTorch, tmp_path: Path) -> None:
    """The args of the published sample, from /job/code/scripts: one pod, its arguments passed on, code 0."""
    args = (
        f"cd /job/code/scripts; chmod +x train_start.sh; bash train_start.sh /job/code /job/output {S4_ARGS}"
    )
    code, out, err = finish(Container(patched, tmp_path, 0, 1, **ports()).start(args))

    assert 0 == code, out + err
    assert "server id is: 0" in out
    report = json.loads((tmp_path / "job/code/rank0-0.json").read_text())
    assert ("L0:0, L1:1, L2:1", "0") == (
        report["env"]["HCCL_OP_RETRY_ENABLE"],
        report["env"]["HCCL_ASYNC_ERROR_HANDLING"],
    )
    assert report["env"]["LD_PRELOAD"].rstrip(":").endswith("taskd/python/cython_api/libs/libtaskd.so")
    assert "32767" == report["env"]["TORCHELASTIC_MAX_RESTARTS"]
    assert (tmp_path / "job/output/logs/node-0/train_start.log").exists()


def test_s2_19_two_pods_of_the_guide_recover_a_killed_rank(patched: OwnTorch, tmp_path: Path) -> None:
    """The args of the guides, the worker first: one rank is killed, all restart, both pods end with 0."""
    args = "cd /job/code; bash scripts/train_start.sh /job/code /job/output main.py \\\n --lr 1"
    common = {**ports(), "DIE": "1"}
    worker = Container(patched, tmp_path, 1, 2, **common).start(args)
    master = Container(patched, tmp_path, 0, 2, **common).start(args)
    ends = [finish(master), finish(worker)]

    assert [0, 0] == [code for code, _, _ in ends], ends
    again = [json.loads((tmp_path / f"job/code/rank{rank}-1.json").read_text()) for rank in range(2)]
    assert [2.0, 2.0] == [report["sum"] for report in again]
    assert "server id is: 1" in ends[1][1]


def test_a_failing_script_ends_the_pod_with_its_code(patched: OwnTorch, tmp_path: Path) -> None:
    """Neither the shell nor the manager beside it changes the code."""
    (tmp_path / "job/code").mkdir(parents=True)
    shutil.copytree(EXAMPLES / "scripts", tmp_path / "job/code/scripts")
    (tmp_path / "job/code/main.py").write_text("import sys; sys.exit(9)")
    args = "cd /job/code; bash scripts/train_start.sh /job/code /job/output main.py"
    code, out, _ = finish(Container(patched, tmp_path, 0, 1, **ports(), MAX_RESTARTS="0").start(args))

    assert 9 == code
    assert "training ended with code 9" in out


@pytest.mark.parametrize("words", ["", "/nowhere", "/nowhere /out main.py"])
def test_wrong_arguments_are_told(words: str, tmp_path: Path) -> None:
    """With the usage, and nothing is started or written."""
    script = EXAMPLES / "scripts" / "train_start.sh"
    done = subprocess.run(
        ["bash", script, *words.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert 2 == done.returncode
    assert "usage: train_start.sh CODE OUTPUT ENTRY" in done.stderr
    assert [] == list(tmp_path.iterdir())
