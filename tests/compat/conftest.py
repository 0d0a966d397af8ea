"""A torch of its own, patched with the seeds' own line."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SEED_SED = (
    "sed -i '/import os/i import taskd.python.adaptor.patch' "
    "$(pip3 show torch | grep Location | awk -F ' ' '{print $2}')/torch/distributed/run.py"
)


class OwnTorch:
    """An environment whose torch may be edited; every other package is the one of the tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        self.site = Path(subprocess.check_output([self.bin / "python", "-c", ask], text=True).strip())

    @property
    def run_py(self) -> Path:
        return self.site / "torch" / "distributed" / "run.py"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    directory = tmp_path_factory.mktemp("wheels")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def own_torch(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> OwnTorch:
    """An environment with pip, the wheel of this tree and a torch whose files are its own."""
    own = make_own_torch(tmp_path_factory.mktemp("own-torch"))
    subprocess.run([own.bin / "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    return own


@pytest.fixture(scope="session")
def patched(own_torch: OwnTorch) -> OwnTorch:
    """A torch on which the seeds' line was run twice."""
    env = {**os.environ, "PATH": f"{own_torch.bin}:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run(["bash", "-c", SEED_SED], env=env, check=True)
    return own_torch


def make_own_torch(root: Path) -> OwnTorch:
    """Make an environment with pip and a torch whose files are its own, without TaskD."""
    subprocess.run([sys.executable, "-m", "venv", root], check=True)
    own = OwnTorch(root)
    theirs = Path(sysconfig.get_path("purelib"))
    for entry in theirs.iterdir():
        mine = own.site / entry.name
        if mine.exists() or entry.name.startswith(("taskd", "_taskd", "__editable__", "pip")):
            continue
        if entry.name == "torch":
            # Hard links: `sed -i` writes a new file, so the torch of the tests stays as it is.
            subprocess.run(["cp", "-al", entry, mine], check=True)
        else:
            mine.symlink_to(entry)
    script = Path(sys.executable).with_name("torchrun").read_text()
    _, _, rest = script.partition("\n")
    torchrun = own.bin / "torchrun"
    torchrun.write_text(f"#!{own.bin / 'python'}\n{rest}")
    torchrun.chmod(0o755)
    if not (own.bin / "pip3").exists():
        shutil.copy(own.bin / "pip", own.bin / "pip3")
    return own
