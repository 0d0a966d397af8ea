"""What tests do with any cluster, ours or one that a KUBECONFIG names: namespaces, users, kubectl."""

import base64
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from taskd.testing.kube.audit import AuditLog
from taskd.testing.kube.binaries import Unavailable
from taskd.testing.kube.client import Api, ApiError
from taskd.testing.kube.processes import Program

# Where the service accounts of `add_user` live.
USERS_NAMESPACE: Final = "taskd-users"

START_TIMEOUT_S: Final = 60.0

_FEW: Final = 50
_NOT_OURS: Final = "the cluster was not started here, so it cannot be killed, paused or overheard"

T = TypeVar("T")


@dataclass(frozen=True)
class User:
    """Somebody who may talk to the cluster, with all that a client needs."""

    name: str
    token: str
    kubeconfig: Path
    api: Api


class Cluster:
    """A cluster with an administrator's rights.

    One that was not started here cannot be harmed or overheard: what needs that raises `Unavailable`, which
    the cluster tests turn into a skip that says so.
    """

    def __init__(self, *, url: str, ca: Path | None, token: str, kubectl: Path, directory: Path) -> None:
        self.url = url
        self.ca = ca
        self.token = token
        self.directory = directory
        self.kubectl_path = kubectl
        self.api = self.client(token)
        self.kubeconfig = self.write_kubeconfig("admin", token)

    def client(
        self, token: str | None = None, *, user_agent: str = "taskd-testing", timeout_s: float = 30
    ) -> Api:
        """Return a client of ours for a token (default: the administrator's)."""
        ca = str(self.ca) if self.ca is not None else None
        return Api(self.url, ca=ca, token=token or self.token, user_agent=user_agent, timeout_s=timeout_s)

    def write_kubeconfig(self, name: str, token: str, *, namespace: str = "default") -> Path:
        """Write a kubeconfig file for a token and return its path."""
        cluster = {"server": self.url}
        if self.ca is not None:
            cluster["certificate-authority"] = str(self.ca)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [
                {"name": "test", "context": {"cluster": "test", "user": name, "namespace": namespace}}
            ],
            "current-context": "test",
        }
        path = self.directory / f"{name.replace(':', '-').replace('/', '-')}.kubeconfig"
        # JSON is YAML, and every reader of kubeconfig files takes it.
        path.write_text(json.dumps(content, indent=1))
        path.chmod(0o600)
        return path

    def kubectl(
        self, *arguments: str, stdin: str | None = None, user: User | None = None, check: bool = True
    ) -> str:
        """Run kubectl and return what it printed; RuntimeError with its words if it fails."""
        done = self._run_kubectl(arguments, stdin, user)
        for pause_s in (0.0, 0.5, 1.0, 2.0):
            if "doesn't have a resource type" not in done.stderr:
                break
            # kubectl remembers for minutes which kinds a server has, and the server itself needs a moment to
            # list a kind that has just been added.
            time.sleep(pause_s)
            shutil.rmtree(self.directory / ".kube", ignore_errors=True)
            done = self._run_kubectl(arguments, stdin, user)
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout if check else done.stdout + done.stderr

    def _run_kubectl(
        self, arguments: Sequence[str], stdin: str | None, user: User | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.kubectl_path), *arguments],
            env={
                "PATH": os.defpath,
                "HOME": str(self.directory),
                "KUBECONFIG": str(user.kubeconfig if user else self.kubeconfig),
            },
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    @contextmanager
    def namespace(self, prefix: str = "t") -> Iterator[str]:
        """Make a namespace with a name of its own; it is deleted afterwards, without waiting for that.

        This is how tests are kept apart: emptying a shared namespace would have to wait until everything in
        it is gone, finalizers and grace periods included, and a namespace of its own needs no waiting.
        """
        name = self.create_namespace(f"{prefix}-{uuid.uuid4().hex[:8]}")
        try:
            yield name
        finally:
            self.delete_namespace(name)

    def create_namespace(self, name: str) -> str:
        """Create a namespace, ready for pods."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": {"taskd-test": "true"}}})
        # Pods need this account. The controller-manager makes it too, but takes its time after an outage.
        try:
            self.api.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        except ApiError as error:
            if error.code != http.client.CONFLICT:
                raise
        return name

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace; what is in it goes in the background."""
        self.api.delete(f"/api/v1/namespaces/{name}")
        # Pods that hang (stuck, or their node is lost) would keep the namespace, so those of a usual test go
        # now, without grace. Thousands of them are left to the controllers: nobody shall wait for that.
        # Groups go now as well: as long as one exists, a scheduler keeps room for it.
        self.api.delete(f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{name}/podgroups")
        path = f"/api/v1/namespaces/{name}/pods"
        if not self.api.get(path, limit=_FEW)["metadata"].get("continue"):
            self.api.delete(path, grace_s=0)

    def apply_yaml(self, text: str, *, user: User | None = None) -> str:
        """Apply YAML, of any number of documents, with kubectl."""
        return self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text, user=user)

    def service_account(self, namespace: str, name: str, *, user_agent: str = "taskd-testing") -> User:
        """Return a service account as a user: with exactly the rights that somebody bound to it."""
        answer = self.api.create(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        full = f"system:serviceaccount:{namespace}:{name}"
        token = answer["status"]["token"]
        path = self.write_kubeconfig(f"{namespace}-{name}", token, namespace=namespace)
        return User(full, token, path, self.client(token, user_agent=user_agent))

    def add_user(
        self,
        name: str,
        *,
        rules: Sequence[Mapping[str, Any]] = (),
        cluster_role: str | None = None,
        user_agent: str = "taskd-testing",
    ) -> User:
        """Make a user that has these RBAC rules, or an existing ClusterRole, and nothing else.

        A service account is behind it, because tokens of those can be had while the server runs.
        """
        role = cluster_role or f"taskd-user-{name}"
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        head = {"apiVersion": "rbac.authorization.k8s.io/v1"}
        self.api.apply(
            f"/api/v1/namespaces/{USERS_NAMESPACE}",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": USERS_NAMESPACE}},
        )
        self.api.apply(
            f"/api/v1/namespaces/{USERS_NAMESPACE}/serviceaccounts/{name}",
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        )
        if cluster_role is None:
            self.api.apply(
                f"{rbac}/clusterroles/{role}",
                {**head, "kind": "ClusterRole", "metadata": {"name": role}, "rules": [*rules]},
            )
        self.api.apply(
            f"{rbac}/clusterrolebindings/taskd-user-{name}",
            {
                **head,
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"taskd-user-{name}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": USERS_NAMESPACE}],
            },
        )
        return self.service_account(USERS_NAMESPACE, name, user_agent=user_agent)

    @property
    def apiserver(self) -> Program:
        """The API server, as a program that can be killed, paused and started."""
        raise Unavailable(_NOT_OURS)

    @property
    def etcd(self) -> Program:
        """The store, likewise."""
        raise Unavailable(_NOT_OURS)

    @property
    def controller_manager(self) -> Program:
        """The controller-manager, likewise (garbage collection, namespaces, node lifecycle …)."""
        raise Unavailable(_NOT_OURS)

    @property
    def audit(self) -> AuditLog:
        """The audit log, where it was asked for."""
        raise Unavailable(_NOT_OURS)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until the API server answers that it is ready."""
        self.api.wait_ready(timeout_s=timeout_s)

    def restart_apiserver(self, *, kill: bool = True) -> None:
        """End the API server (by SIGKILL unless told otherwise), start it on the same port, wait for it.

        The controller-manager's patience grows with every outage, up to half a minute until it is back: a
        test that needs garbage collection after several of them had better have a control plane of its own.
        """
        if kill:
            self.apiserver.kill()
        else:
            self.apiserver.stop()
        self.apiserver.start()
        self.wait_ready()

    @staticmethod
    def wait(what: Callable[[], T], *, timeout_s: float = 10, every_s: float = 0.02) -> T:
        """Call `what` until it returns something true, and return that; `TimeoutError` after the limit."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = what()
            if found:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing after {timeout_s:g} s: the last answer was {found!r}")
            time.sleep(every_s)


def existing(kubectl: Path, directory: Path) -> Cluster | None:
    """Return the cluster that the environment names, or None.

    ``TASKD_KUBECONFIG`` is taken as it is. ``KUBECONFIG`` only where its server is on this machine: tests
    create and delete cluster-wide objects, and a variable that many people have set all day is no consent
    to do that to a cluster that others use.
    """
    named = os.environ.get("TASKD_KUBECONFIG")
    path = named or os.environ.get("KUBECONFIG")
    if not path:
        return None
    done = subprocess.run(
        [str(kubectl), "config", "view", "--raw", "--minify", "--flatten", "-o", "json"],
        env={"PATH": os.defpath, "HOME": str(directory), "KUBECONFIG": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    if done.returncode != 0:
        raise Unavailable(f"the kubeconfig {path} cannot be used: {done.stderr.strip()}")
    config = json.loads(done.stdout)
    server = config["clusters"][0]["cluster"]
    user = config["users"][0]["user"]
    if not named and not _on_this_machine(server["server"]):
        return None
    token = user.get("token")
    if not token:
        raise Unavailable(f"the kubeconfig {path} has no token; only tokens are understood here")
    ca = None
    if "certificate-authority-data" in server:
        descriptor, name = tempfile.mkstemp(dir=directory, suffix=".crt")
        os.close(descriptor)
        ca = Path(name)
        ca.write_bytes(base64.b64decode(server["certificate-authority-data"]))
    return Cluster(url=server["server"], ca=ca, token=token, kubectl=kubectl, directory=directory)


def _on_this_machine(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
