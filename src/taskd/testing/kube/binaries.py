"""The programs of a control plane: found, or built once.

There is no container engine and no download page behind this: everything is built from Go modules that
``tools/kube/*/go.mod`` name, into a cache outside the checkout. A fresh clone on the same machine finds
them there. The directory of each module carries a digest of all that decides its content (go.mod, go.sum,
flags), so a changed version is a new directory and never a surprise. A build happens in a directory of its
own under a lock and is renamed when it is complete.

``KUBEBUILDER_ASSETS`` may name a directory that has some of them (as controller-runtime's setup-envtest
makes it); they are taken first. ``TASKD_KUBE_CACHE`` moves the cache.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# In an installed package there is no such directory, and then nothing can be built.
SOURCES: Final = Path(__file__).resolve().parents[4] / "tools" / "kube"


class Unavailable(RuntimeError):
    """A program is neither here nor can be built here; the text is one line that says why."""


@dataclass(frozen=True)
class GoModule:
    """One go.mod of ours and the programs that it builds."""

    name: str
    origin: str
    programs: Mapping[str, str]
    stamp: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """Where its go.mod is."""
        return SOURCES / self.name

    def version(self) -> str:
        """Return the version that go.mod asks for."""
        found = re.search(
            rf"^\s*(?:require\s+)?{re.escape(self.origin)} (v\S+)",
            (self.directory / "go.mod").read_text(),
            re.MULTILINE,
        )
        if found is None:
            raise Unavailable(f"{self.directory / 'go.mod'} does not require {self.origin}")
        return found[1]

    def flags(self) -> list[str]:
        """Return the build flags; the version is stamped in where the program tells it to its clients."""
        version = self.version()
        major, minor = version.removeprefix("v").split(".")[:2]
        values = {"version": version, "major": major, "minor": minor}
        stamps = [f"-X {stamp.format(**values)}" for stamp in self.stamp]
        return ["-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags={' '.join(['-s -w', *stamps])}"]

    def key(self) -> str:
        """Return the name of its directory in the cache."""
        digest = hashlib.sha256()
        for file in (
            self.directory / "go.mod",
            self.directory / "go.sum",
            *sorted(self.directory.rglob("*.go")),
        ):
            digest.update(file.read_bytes())
        digest.update(json.dumps([self.flags(), dict(self.programs), platform.machine()]).encode())
        return f"{self.name}-{self.version()}-{digest.hexdigest()[:12]}"


# Without these, clients see v0.0.0.
_KUBERNETES_STAMP: Final = (
    "k8s.io/component-base/version.gitVersion={version}",
    "k8s.io/component-base/version.gitMajor={major}",
    "k8s.io/component-base/version.gitMinor={minor}",
)

MODULES: Final = (
    GoModule(
        "kubernetes",
        "k8s.io/kubernetes",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        },
        _KUBERNETES_STAMP,
    ),
    # What a machine runs to be a node. A module of its own: most tests need no nodes, and build less.
    GoModule(
        "node",
        "k8s.io/kubernetes",
        {
            "kubelet": "k8s.io/kubernetes/cmd/kubelet",
            "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
            "pause": "./pause",
        },
        _KUBERNETES_STAMP,
    ),
    GoModule("coredns", "github.com/coredns/coredns", {"coredns": "."}),
    GoModule("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    GoModule("kwok", "sigs.k8s.io/kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    GoModule("helm", "helm.sh/helm/v3", {"helm": "helm.sh/helm/v3/cmd/helm"}),
    # Other operators, for the benchmark alone: a main of ours around their controllers (see main.go there).
    GoModule("training-operator", "github.com/kubeflow/training-operator", {"training-operator": "."}),
    GoModule("jobset", "sigs.k8s.io/jobset", {"jobset": "."}),
)

# What is said where they are missing.
NOT_SHOWN: Final = "the tests on a real Kubernetes were not run, so nothing is shown about the operator there"

# What every cluster test needs. Helm is for the tests of the chart alone.
CONTROL_PLANE: Final = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
)

# What three real nodes need beside it (see `taskd.testing.cluster`).
NODES: Final = ("kubelet", "kube-proxy", "pause", "coredns")


def cache_directory() -> Path:
    """Return where built programs are kept."""
    named = os.environ.get("TASKD_KUBE_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taskd" / "kube"


def go() -> str | None:
    """Return the Go command, if there is one."""
    return shutil.which("go")


def find(program: str) -> Path | None:
    """Return where a program is, without building."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(Path(assets) / program, os.X_OK):
        return Path(assets) / program
    module = _module_of(program)
    if not module.directory.is_dir():
        return None
    built = cache_directory() / module.key() / program
    return built if os.access(built, os.X_OK) else None


def missing(programs: Sequence[str] = CONTROL_PLANE) -> str | None:
    """Return one line that says why these programs cannot be had here, or None if they can."""
    absent = [program for program in programs if find(program) is None]
    if not absent:
        return None
    what = f"no {', '.join(absent)}"
    if not SOURCES.is_dir():
        return f"{what}: not in KUBEBUILDER_ASSETS, and {SOURCES} is not there to build from"
    if go() is None:
        return f"{what}: not in KUBEBUILDER_ASSETS, and there is no Go to build them"
    return None


def require(*programs: str) -> dict[str, Path]:
    """Return where these programs are, building what is not there yet; `Unavailable` where that fails."""
    reason = missing(programs)
    if reason is not None:
        raise Unavailable(reason)
    for module in MODULES:
        if any(find(program) is None for program in programs if program in module.programs):
            build(module)
    paths = {program: find(program) for program in programs}
    absent = [program for program, path in paths.items() if path is None]
    if absent:
        raise Unavailable(f"{', '.join(absent)} not found after the build in {cache_directory()}")
    return {program: path for program, path in paths.items() if path is not None}


def build(module: GoModule) -> Path:
    """Build one module's programs into the cache, unless somebody has; return the directory."""
    command = go()
    if command is None:
        raise Unavailable(f"there is no Go to build {module.name}")
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    done = cache / module.key()
    with _locked(cache / f"{module.name}.lock"):
        if done.is_dir():
            return done
        # Whoever held the lock before us is gone, so what it left is nobody's.
        half_made = cache / f".{module.key()}.building"
        shutil.rmtree(half_made, ignore_errors=True)
        half_made.mkdir()
        started = time.monotonic()
        _say(f"building {module.name} {module.version()} into {done} (once; minutes)")
        try:
            for program, package in module.programs.items():
                _go_build(command, module, package, half_made / program)
            half_made.rename(done)
        finally:
            shutil.rmtree(half_made, ignore_errors=True)
        _say(f"built {', '.join(module.programs)} in {time.monotonic() - started:.0f} s")
    return done


def module_source(program: str) -> Path:
    """Return where the sources of a program's module are, which may carry its CRDs; fetched if need be."""
    command, module = go(), _module_of(program)
    if command is None:
        raise Unavailable(f"there is no Go to fetch the sources of {module.name}")
    done = subprocess.run(
        [command, "mod", "download", "-json", module.origin],
        cwd=module.directory,
        env={**os.environ, "GOWORK": "off", "GOFLAGS": "-mod=readonly"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable(f"the sources of {module.origin} cannot be had: {done.stderr.strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def _go_build(command: str, module: GoModule, package: str, output: Path) -> None:
    done = subprocess.run(
        [command, "build", *module.flags(), "-o", str(output), package],
        cwd=module.directory,
        # A workspace or flags of the user's would change what is built; cgo would tie it to this machine.
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        raise Unavailable(f"go build {package} in {module.directory} failed: {last}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel releases with the process."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another build ({path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _module_of(program: str) -> GoModule:
    for module in MODULES:
        if program in module.programs:
            return module
    known = ", ".join(program for module in MODULES for program in module.programs)
    raise ValueError(f"unknown program {program!r}; known are {known}")


def _say(text: str) -> None:
    sys.stderr.write(f"kube: {text}\n")
    sys.stderr.flush()
