"""The wheel works in an empty environment, and the lines of users' start scripts work on it.

It is built from the source archive, not from the tree, so whatever the archive forgets is missing here.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
LIBRARY = "taskd/python/cython_api/libs/libtaskd.so"
# The line of the documented start scripts.
SO_PATH_LINE = f"""pip show taskd | awk '/^Location: / {{print $2"/{LIBRARY}"}}'"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
needs_compiler = pytest.mark.skipif(
    not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))),
    reason="no C compiler here",
)


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command that must succeed and return what it said."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert 0 == done.returncode, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def build_wheel(source: Path, into: Path, env: Mapping[str, str] | None = None) -> tuple[Path, str]:
    """Build as a user would (`pip wheel .`), with the build tools that are here."""
    command: list[str | Path]
    if find_spec("pip"):
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-v",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            into,
        ]
    else:
        assert UV, "neither pip nor uv is here; `make setup` brings both"
        command = [UV, "build", "-v", "--wheel", "--no-build-isolation", "-p", sys.executable, "-o", into]
    said = run(*command, source, env=env, cwd=source)
    (wheel,) = into.glob("*.whl")
    return wheel, said


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the source archive of the tree as it is."""
    folder = tmp_path_factory.mktemp("source")
    left_out = shutil.ignore_patterns(
        ".git", ".venv*", "__pycache__", ".*_cache", "*.so", "dist", "taskd_log"
    )
    shutil.copytree(ROOT, folder / "tree", ignore=left_out, symlinks=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=folder / "tree")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))[0]


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment that has the wheel, what the wheel asks for, and pip."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    base = getattr(sys, "_base_executable", sys.executable)
    run(base, "-m", "venv", venv)
    if UV:
        run(UV, "pip", "install", "--python", venv / "bin/python", wheel)
    else:
        run(venv / "bin/python", "-m", "pip", "install", wheel)
    return venv


def shell(empty: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in bash, in the environment, outside the tree."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=empty,
        env={**clean, "PATH": f"{empty / 'bin'}:{os.environ['PATH']}", "LC_ALL": "C"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_works_in_an_empty_environment(empty: Path) -> None:
    """`pip install` of the wheel is all that a user does, and PyTorch does not come with it."""
    done = shell(empty, "taskd --help && python -c 'import taskd.api; print(taskd.__file__)'")

    assert 0 == done.returncode, done.stderr
    assert "run" in done.stdout
    assert str(empty) in done.stdout
    assert 0 != shell(empty, "python -c 'import torch'").returncode


@needs_compiler
def test_the_wheel_carries_the_library_and_says_for_which_machine(wheel: Path) -> None:
    """The tag keeps pip from installing it on another architecture."""
    assert wheel.stem.endswith(f"-py3-none-linux_{os.uname().machine}")
    assert LIBRARY in zipfile.ZipFile(wheel).namelist()


def test_without_a_compiler_the_wheel_is_pure_and_says_so(source: Path, tmp_path: Path) -> None:
    """A missing compiler costs the library, not the package."""
    tree = shutil.copytree(source, tmp_path / "tree")
    wheel, said = build_wheel(tree, tmp_path / "out", env={"CC": "/nonexistent/cc"})

    assert wheel.stem.endswith("-py3-none-any")
    assert LIBRARY not in zipfile.ZipFile(wheel).namelist()
    assert "libtaskd.so was not built" in said


@needs_compiler
def test_the_documented_line_finds_the_library(empty: Path) -> None:
    """What the start scripts compute from `pip show` is a file that loads."""
    done = shell(empty, f"test -f $({SO_PATH_LINE}) && {SO_PATH_LINE}")

    assert str(empty) in done.stdout, done.stderr
    loaded = shell(
        empty,
        "python -c 'from taskd.python.cython_api.cython_api import lib; print(lib.taskd_version().decode())'",
    )
    version = shell(empty, "python -c 'import taskd; print(taskd.__version__)'")
    assert version.stdout == loaded.stdout, loaded.stderr


@needs_compiler
@pytest.mark.parametrize(
    "program", ["bash -c true", "ls", "python -c 'import ctypes, ssl'", "sh -c 'ls | cat'", "taskd --help"]
)
def test_the_preload_harms_no_program(empty: Path, program: str) -> None:
    """The library lands in every process of the script, and none of them notices."""
    plain = shell(empty, program)
    done = shell(
        empty, f'TASKD_SO_PATH="$({SO_PATH_LINE})"; export LD_PRELOAD=$TASKD_SO_PATH:$LD_PRELOAD; {program}'
    )

    assert (plain.returncode, plain.stdout, plain.stderr) == (done.returncode, done.stdout, done.stderr)


@needs_compiler
def test_a_process_can_tell_that_the_preload_took_effect(empty: Path) -> None:
    """Loading the handle is not a preload; the line of the start script is."""
    ask = "python -c 'from taskd.python.cython_api.cython_api import preloaded; print(preloaded())'"

    assert "False\n" == shell(empty, ask).stdout
    assert "True\n" == shell(empty, f'export LD_PRELOAD="$({SO_PATH_LINE})"; {ask}').stdout


@needs_compiler
def test_an_entry_that_does_not_exist_is_only_a_warning(empty: Path) -> None:
    """libmspti.so is on Ascend images only; elsewhere the dynamic linker complains and goes on."""
    done = shell(
        empty, f'export LD_PRELOAD=/usr/local/Ascend/cann/lib64/libmspti.so:"$({SO_PATH_LINE})"; /bin/echo on'
    )

    assert (0, "on\n") == (done.returncode, done.stdout)
    assert "libmspti.so" in done.stderr
    assert "libtaskd.so" not in done.stderr
