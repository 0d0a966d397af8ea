"""The import contracts of pyproject.toml hold, and each of them would notice a violation."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"

DOWNWARDS = "Imports go downwards"
ROLES = "Roles do not import each other"
PURE = "core touches nothing outside itself"
LIGHT = "The training process loads neither gRPC nor a Kubernetes client"
FRAMEWORKS = "torch and mindspore stay in their own corners"
ONE_SIGNER = "Only kit.issuing makes certificates"
ONE_CLIENT = "Only kube speaks to the API server"
TESTING = "testing knows core, wire, links and kit only"


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINT_IMPORTS), "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def broken_in(output: str) -> set[str]:
    return {line.partition(" BROKEN")[0] for line in output.splitlines() if " BROKEN" in line}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy the sources and the contracts, to be spoilt."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def write_module(tree: Path, module: str, text: str) -> None:
    path = tree / "src" / f"{module.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_the_contracts_hold() -> None:
    """The tree as it is keeps all contracts."""
    done = lint(ROOT)

    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("modules", "want"),
    [
        ({"taskd.core.spoilt": "import time"}, {PURE}),
        ({"taskd.core.spoilt": "from os import path"}, {PURE}),
        ({"taskd.core.spoilt": "import msgspec"}, {PURE}),
        ({"taskd.core.spoilt": "import taskd.kit"}, {DOWNWARDS}),
        ({"taskd.kit.spoilt": "import taskd.links"}, {DOWNWARDS}),
        ({"taskd.manager.spoilt": "import taskd.agent"}, {DOWNWARDS, ROLES}),
        ({"taskd.agent.spoilt": "import taskd.worker"}, {ROLES}),
        ({"taskd.manager.spoilt": "import taskd.cli"}, {DOWNWARDS}),
        ({"taskd.train.spoilt": "import grpc"}, {LIGHT}),
        ({"taskd.worker.spoilt": "import taskd.links.spoilt", "taskd.links.spoilt": "import grpc"}, {LIGHT}),
        ({"taskd.worker.spoilt": "def f():\n    import lightkube"}, {LIGHT, ONE_CLIENT}),
        ({"taskd.train.spoilt": "import taskd.kube"}, {LIGHT}),
        ({"taskd.worker.spoilt": "import taskd.kube.client"}, {LIGHT}),
        ({"taskd.operator.spoilt": "import aiohttp"}, {ONE_CLIENT}),
        ({"taskd.plane.spoilt": "from lightkube import AsyncClient"}, {ONE_CLIENT}),
        ({"taskd.operator.spoilt": "from cryptography import x509"}, {ONE_SIGNER}),
        ({"taskd.worker.spoilt": "import taskd.kit.issuing"}, {LIGHT}),
        ({"taskd.manager.spoilt": "import torch.distributed"}, {FRAMEWORKS}),
        ({"taskd.train.spoilt": "import mindspore"}, {FRAMEWORKS}),
        ({"taskd.testing.spoilt": "import taskd.manager"}, {DOWNWARDS}),
        ({"taskd.testing.spoilt": "import taskd.kube"}, {TESTING}),
        ({"taskd.stray.__init__": ""}, {DOWNWARDS}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else None,
)
def test_a_violation_is_found(tree: Path, modules: dict[str, str], want: set[str]) -> None:
    """Each contract is alive: one bad import breaks it, and its name is printed."""
    for module, text in modules.items():
        write_module(tree, module, text + "\n")

    done = lint(tree)

    assert want == broken_in(done.stdout), done.stdout
    assert 0 != done.returncode


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("taskd.train.allowed", "import taskd.worker"),
        ("taskd.train.torch.allowed", "import torch"),
        ("taskd.agent.torch.allowed", "import torch"),
        ("taskd.testing.allowed", "import taskd.links"),
        ("taskd.cli.allowed", "import taskd.manager"),
    ],
)
def test_what_is_allowed_passes(tree: Path, module: str, text: str) -> None:
    """The contracts forbid no more than the architecture does."""
    write_module(tree, module, text + "\n")

    done = lint(tree)

    assert 0 == done.returncode, done.stdout


def test_core_imports_the_standard_library_and_itself() -> None:
    """Also a third-party package that no contract names yet is refused in ``core``."""
    allowed = set(sys.stdlib_module_names)
    found = set()
    for path in (ROOT / "src/taskd/core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    found |= {(path.name, alias.name) for alias in names}
                case ast.ImportFrom(module=str(module), level=0):
                    found.add((path.name, module))
                case _:
                    pass

    foreign = {(file, name) for file, name in found if name.partition(".")[0] not in allowed}
    assert set() == {(file, name) for file, name in foreign if not name.startswith("taskd.core")}
