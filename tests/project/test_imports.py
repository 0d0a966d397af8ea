"""What each entry point may load.

Start-up time is recovery time, and data loaders fork the training process with all it has loaded. So every
module of an entry point is imported in a fresh process, and what came with it is looked at.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import taskd

PACKAGE = Path(taskd.__file__).parent

IN_TRAINING = frozenset(
    {
        "aiohttp", "asyncio", "cryptography", "grpc", "lightkube", "mindspore", "rich", "structlog", "torch",
        "typer", "yaml",
    }
)  # fmt: skip
IN_CLI = frozenset({"torch", "mindspore", "cryptography", "grpc", "rich", "aiohttp", "lightkube", "pydantic"})
IN_API = frozenset({"torch", "mindspore", "cryptography", "rich", "aiohttp", "lightkube"})

FRAMEWORKS = ("taskd.train.torch", "taskd.train.mindspore")


def modules_below(package: str) -> list[str]:
    """Name the package and all modules below it that exist now, without importing them."""
    root = PACKAGE.parent / package.replace(".", "/")
    names = {package}
    for path in root.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(names)


def loaded_by(module: str) -> set[str]:
    """Import the module in a fresh process and name the top-level packages that are then loaded."""
    script = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        name
        for name in [*modules_below("taskd.worker"), *modules_below("taskd.train")]
        if not name.startswith(FRAMEWORKS)
    ],
)
def test_the_training_process_stays_light(module: str) -> None:
    """No gRPC, no Kubernetes client, no event loop, and no framework that the user did not import."""
    assert set() == loaded_by(module) & IN_TRAINING


@pytest.mark.skipif(not (PACKAGE / "cli" / "main.py").exists(), reason="the command line is not there yet")
def test_the_command_line_starts_light() -> None:
    """`taskd --help` loads what it shows and no more; commands load the rest when they run."""
    assert set() == loaded_by("taskd.cli.main") & IN_CLI


@pytest.mark.parametrize("module", modules_below("taskd.api"))
def test_the_documented_functions_do_not_import_a_framework(module: str) -> None:
    """``manager.py`` runs in a process that needs no torch, and a script imports torch when it wants to."""
    assert set() == loaded_by(module) & IN_API


@pytest.mark.parametrize("module", ["taskd.cli.controller", "taskd.manager.service", "taskd.proxy.relay"])
def test_certificates_are_made_by_who_makes_some(module: str) -> None:
    """Showing and checking them takes no library; a controller that makes none does not load it."""
    assert "cryptography" not in loaded_by(module)


def test_the_package_itself_loads_nothing() -> None:
    """``import taskd`` is a version string."""
    assert {"taskd"} == loaded_by("taskd") - loaded_by("sys")


def test_a_forbidden_module_would_be_seen() -> None:
    """The check looks at what is really loaded: a module that imports asyncio is caught."""
    assert "asyncio" in loaded_by("asyncio") & IN_TRAINING
