"""A namespace with a controller of its own, and the words in which tests speak of jobs."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from taskd.testing.kube import Cluster

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
JOBS = "/apis/mindxdl.gitee.com/v1/namespaces/{}/ascendjobs"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups"
Json = dict[str, Any]
T = TypeVar("T")

PATIENCE_S = 60.0
"""A wait ends when what it waits for is so; only a failure, or a machine with much else to do, takes long."""


class Controller:
    """`taskd controller` as a process, for one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, *flags: str) -> None:
        self.log = log
        self._command = [
            sys.executable, "-m", "taskd.cli.main", "controller",
            "--kubeconfig", str(kubeconfig), "--namespace", namespace, "--lease-namespace", namespace,
            "--listen", "127.0.0.1:0", "--lease-s", "6", *flags,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self, *, leads: bool = True) -> Controller:
        """Start it, and wait until it leads, or until it stands by."""
        self.starts += 1
        sign = '"synced"' if leads else '"controller_started"'
        before = self.log.read_text().count(sign) if self.log.exists() else 0
        with self.log.open("ab") as stream:
            env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
            self.process = subprocess.Popen(self._command, stderr=stream, env=env)
        process = self.process
        try:
            until(lambda: self.log.read_text().count(sign) > before or process.poll() is not None, 60)
        except AssertionError:
            self.kill()
            raise
        assert process.poll() is None, self.log.read_text()
        return self

    def kill(self) -> None:
        """End it with kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """What happens in this block it sees afterwards, all at once."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code


class Site:
    """The jobs of one namespace."""

    def __init__(self, kube: Cluster, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    # ------------------------------------------------------------------------------------- submitting

    def submit(self, job: Json | str) -> str:
        """Apply a job, as text or value, into the namespace; returns its name."""
        content: Json = yaml.safe_load(job) if isinstance(job, str) else copy.deepcopy(job)
        content["metadata"]["namespace"] = self.namespace
        self.kube.apply_yaml(yaml.safe_dump(content))
        return str(content["metadata"]["name"])

    def example(self, name: str) -> Json:
        """An example of the repository, as a value."""
        content: Json = yaml.safe_load((EXAMPLES / name).read_text())
        return content

    def patch(self, name: str, patch: Json) -> None:
        """Change a job, as a user with kubectl edit."""
        self.kube.api.patch(f"{JOBS.format(self.namespace)}/{name}", patch)

    def delete(self, name: str) -> None:
        self.kube.api.delete(f"{JOBS.format(self.namespace)}/{name}")

    # ---------------------------------------------------------------------------------------- looking

    def job(self, name: str) -> Json:
        found: Json = self.kube.api.get(f"{JOBS.format(self.namespace)}/{name}")
        return found

    def status(self, name: str) -> Json:
        found: Json = self.job(name).get("status") or {}
        return found

    def last(self, name: str) -> Json:
        conditions = self.status(name).get("conditions") or [{"type": "", "reason": "", "message": ""}]
        found: Json = conditions[-1]
        return found

    def state(self, name: str) -> str:
        return str(self.last(name)["type"])

    def pods(self, name: str = "") -> dict[str, Json]:
        found = self.kube.api.items(f"/api/v1/namespaces/{self.namespace}/pods")
        return {
            pod["metadata"]["name"]: pod
            for pod in found
            if not name or pod["metadata"].get("labels", {}).get("job-name") == name
        }

    def pod(self, name: str) -> Json:
        found: Json = self.kube.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        return found

    def env(self, pod: str) -> Json:
        """The environment of the container `ascend`: values, or the source of a value."""
        containers = self.pod(pod)["spec"]["containers"]
        (main,) = [container for container in containers if container["name"] == "ascend"]
        listed = [entry["name"] for entry in main.get("env", ())]
        assert len(listed) == len(set(listed)), "a name stands there twice"
        return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in main.get("env", ())}

    def services(self) -> dict[str, Json]:
        found = self.kube.api.items(f"/api/v1/namespaces/{self.namespace}/services")
        return {service["metadata"]["name"]: service for service in found}

    def groups(self) -> list[Json]:
        found: list[Json] = self.kube.api.items(GROUPS.format(self.namespace))
        return found

    def events(self, name: str) -> list[tuple[str, str, str]]:
        found = self.kube.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        return [
            (event["type"], event["reason"], event["message"])
            for event in found
            if event["involvedObject"]["name"] == name and event["involvedObject"]["kind"] == "AscendJob"
        ]

    # ---------------------------------------------------------------------------------------- waiting

    def wait_state(self, name: str, state: str, reason: str = "", limit_s: float = PATIENCE_S) -> Json:
        """Wait until the newest condition is of that type (and reason); returns it."""

        def there() -> Json | None:
            last = self.last(name)
            return last if last["type"] == state and reason in {"", last["reason"]} else None

        return until(there, limit_s, lambda: f"{name} is {self.status(name)}")

    def wait_pods(self, name: str, count: int, limit_s: float = PATIENCE_S) -> dict[str, Json]:
        """Wait until the job has so many pods that are not being deleted."""

        def there() -> list[dict[str, Json]]:
            found = {
                pod: content
                for pod, content in self.pods(name).items()
                if not content["metadata"].get("deletionTimestamp")
            }
            return [found] if len(found) == count else []

        (pods,) = until(there, limit_s, lambda: f"{name} has {sorted(self.pods(name))}: {self.status(name)}")
        return pods


def until(
    look: Callable[[], T | None], limit_s: float = PATIENCE_S, say: Callable[[], str] = lambda: ""
) -> T:
    """Ask again and again until the answer is true; what it was then."""
    end = time.monotonic() + limit_s
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {say()}")
        time.sleep(0.03)
