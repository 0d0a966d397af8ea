"""The programs are found where they are, and built once where they are not.

Building for real takes minutes and is shown by every other test of this folder; here a script plays `go`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.testing.kube import binaries
from taskd.testing.kube.__main__ import main

GO = """#!/bin/sh
# go build FLAGS... -o OUTPUT PACKAGE
echo "$@" >> "$TASKD_GO_LOG"
while [ "$1" != "-o" ]; do shift; done
printf half > "$2"
[ -e "$TASKD_GO_LOG.wait" ] && sleep 0.5
if [ -e "$TASKD_GO_LOG.fail" ]; then echo "package $3 does not compile" >&2; exit 1; fi
printf '#!/bin/sh\\necho whole\\n' > "$2"
chmod +x "$2"
"""


class Machine:
    """A machine with a cache of its own and, if asked for, a `go` that keeps a log."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = path / "cache"
        self.bin = path / "bin"
        self.bin.mkdir()
        self.log = path / "go.log"
        for name in ("KUBEBUILDER_ASSETS", "CI"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TASKD_KUBE_CACHE", str(self.cache))
        monkeypatch.setenv("TASKD_GO_LOG", str(self.log))
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")

    def with_go(self) -> "Machine":
        (self.bin / "go").write_text(GO)
        (self.bin / "go").chmod(0o755)
        return self

    def builds(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def left(self) -> list[str]:
        return sorted(entry.name for entry in self.cache.iterdir() if entry.suffix != ".lock")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_they_are_built_once(machine: Machine) -> None:
    """Who asks again finds what the first built; only the module that is needed is built."""
    machine.with_go()

    first = binaries.require("kwok")
    second = binaries.require("kwok")

    assert first == second
    assert 1 == machine.builds()
    assert (
        "whole" == subprocess.run([first["kwok"]], capture_output=True, text=True, check=True).stdout.strip()
    )


def test_a_failed_build_leaves_nothing(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """What the compiler said is shown, the half-made program is gone, and the next try starts afresh."""
    machine.with_go()
    fails = Path(f"{machine.log}.fail")
    fails.touch()

    with pytest.raises(binaries.Unavailable, match="does not compile"):
        binaries.require("kwok")
    assert [] == machine.left()
    assert "does not compile" in capfd.readouterr().err

    fails.unlink()
    assert binaries.require("kwok")["kwok"].exists()


def test_what_a_killed_build_left_is_cleared(machine: Machine) -> None:
    """A directory that was being filled when its builder was killed is not taken for a finished one."""
    machine.with_go()
    module = binaries._module_of("kwok")
    left = machine.cache / f".{module.key()}.building"
    left.mkdir(parents=True)
    (left / "kwok").write_text("half")

    assert machine.cache / module.key() / "kwok" == binaries.require("kwok")["kwok"]
    assert [module.key()] == machine.left()


def test_two_builders_build_once(machine: Machine) -> None:
    """The second waits for the first and takes what it made."""
    machine.with_go()
    Path(f"{machine.log}.wait").touch()
    command = [sys.executable, "-m", "taskd.testing.kube", "build", "kwok"]

    both = [subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) for _ in range(2)]
    answers = [builder.communicate(timeout=60)[0] for builder in both]

    assert [0, 0] == [builder.returncode for builder in both]
    assert answers[0] == answers[1]
    assert 1 == machine.builds()


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_a_changed_version_is_another_directory(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Whatever decides the content of a program is in the name of its directory."""
    sources = tmp_path / "sources" / "kwok"
    sources.mkdir(parents=True)
    for name in ("go.mod", "go.sum"):
        (sources / name).write_bytes((binaries.SOURCES / "kwok" / name).read_bytes())
    monkeypatch.setattr(binaries, "SOURCES", sources.parent)
    module = binaries._module_of("kwok")
    before = module.key()

    with (sources / file).open("a") as out:
        out.write("// changed\n")

    assert before != module.key()


def test_the_flags_are_in_the_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that were built otherwise are other programs."""
    module = binaries._module_of("kube-apiserver")
    before = module.key()
    flags = module.flags()

    monkeypatch.setattr(binaries.GoModule, "flags", lambda _: [*flags, "-race"])

    assert before != module.key()


def test_assets_come_first(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that setup-envtest made is used, and only the rest is built."""
    machine.with_go()
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "etcd").write_text("#!/bin/sh\n")
    (assets / "etcd").chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))

    found = binaries.require("etcd", "kwok")

    assert assets / "etcd" == found["etcd"]
    assert machine.cache in found["kwok"].parents
    assert 1 == machine.builds()


def test_without_go_one_line_says_what_is_not_shown(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make test` goes on and ends with that line; in CI it stops."""
    assert 0 == main(["build", "--if-possible"])
    assert 0 == main(["shown"])
    out = capsys.readouterr().out
    assert 1 == out.count("\n")
    assert out.startswith("NOT SHOWN: the tests on a real Kubernetes were not run")
    assert "no etcd, kube-apiserver, " in out
    assert "there is no Go" in out

    monkeypatch.setenv("CI", "true")
    assert 2 == main(["build", "--if-possible"])
    assert 2 == main(["build", "etcd"])


def test_a_wrong_name_is_an_error_with_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Who mistypes a program or a command is told the choice."""
    assert 2 == main(["build", "kublet"])
    assert "unknown program 'kublet'; known are kube-apiserver, " in capsys.readouterr().err
    assert 2 == main(["buidl"])
    assert "usage:" in capsys.readouterr().err
