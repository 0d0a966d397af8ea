"""The controller's image, as far as it can be shown without a container engine."""

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Read the Dockerfile as pairs of instruction and arguments, with continued lines joined."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE))
    lines = [line for line in text.splitlines() if line.strip()]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def copied_from_context() -> list[str]:
    """Return what the build stage takes from the repository."""
    copies = [words.split() for name, words in instructions() if name == "COPY" and "--from" not in words]
    return [source for *sources, _ in copies for source in sources]


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    """Every source of a COPY is in the repository, and the ignore file lets it through."""
    ignored = (ROOT / "deploy/Dockerfile.dockerignore").read_text().split("\n")
    allowed = [line.removeprefix("!") for line in ignored if line.startswith("!")]

    sources = copied_from_context()

    assert sources
    assert [] == [source for source in sources if not (ROOT / source).exists()]
    assert sorted(sources) == sorted(allowed)
    assert "*" in ignored
    assert any(fnmatch.fnmatch("src/taskd/__pycache__", line) for line in ignored)


@pytest.mark.slow
def test_the_wheel_is_built_from_what_is_copied_alone(tmp_path: Path) -> None:
    """The build stage has all that the wheel needs, and a compiler is not part of it."""
    context, made = tmp_path / "src", tmp_path / "wheels"
    context.mkdir()
    for source in copied_from_context():
        if (ROOT / source).is_dir():
            skip = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / source, context / source, ignore=skip)
        else:
            shutil.copy(ROOT / source, context / source)

    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(made)],
        cwd=context,
        env={"PATH": str(tmp_path / "no-compiler")},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    (wheel,) = made.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "taskd/operator/__init__.py" in zipfile.ZipFile(wheel).namelist()


def test_the_image_starts_taskd_as_an_ordinary_user() -> None:
    """The entry point is the command that the wheel installs, and the user is not root."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    found = dict(instructions())

    (entry_point,) = json.loads(found["ENTRYPOINT"])
    assert entry_point in scripts
    assert ["controller"] == json.loads(found["CMD"])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", found["USER"])


def test_the_image_and_the_deployment_agree() -> None:
    """The user, the port and the command of the chart are those of the image."""
    deployment = (ROOT / "deploy/helm/taskd/templates/deployment.yaml").read_text()
    found = dict(instructions())
    user, group = found["USER"].split(":")

    assert f"runAsUser: {user}\n" in deployment
    assert f"runAsGroup: {group}\n" in deployment
    assert f"containerPort: {found['EXPOSE']}}}" in deployment
    assert f"command: [taskd, {json.loads(found['CMD'])[0]}]" in deployment


def test_the_bases_are_plain_names() -> None:
    """No registry is named: whoever builds decides where the base comes from."""
    bases = [words.split()[0] for name, words in instructions() if name == "FROM"]

    assert 2 == len(bases)
    assert [] == [base for base in bases if "/" in base or ":" not in base]
