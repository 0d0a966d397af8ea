"""Real API servers for the tests of what is installed.

One has AscendJob defined, for the tests of the definition and the samples; each test has a namespace of its
own there. Others begin empty, for the tests that install and remove everything: those cannot take the
definition away from the others.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Never

import pytest

from taskd.testing.kube import (
    Cluster,
    ControlPlane,
    Kubelets,
    Unavailable,
    User,
    VolcanoStandIn,
    install_crds,
    require,
)
from tests.deploy.support import BASE, CRD, wait_until_served
from tests.kube.operator.site import until

NOT_SHOWN = "nothing is shown about the installation on Kubernetes"
NAMESPACE = "taskd-system"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/taskd-controller"
NEEDS = {"cluster", "empty_cluster", "kustomized", "installed", "helm"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a cluster, or the programs that come with it."""
    for item in items:
        if NEEDS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kube)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build Helm before the first test, where it is missing: it takes minutes, and tests have limits."""
    wanted = any("helm" in getattr(item, "fixturenames", ()) for item in session.items)
    if wanted and not session.config.option.collectonly:
        # Where it cannot be done the fixture says so.
        with suppress(Unavailable):
            require("helm", "kubectl")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane for the tests of the definition and the samples."""
    with control_plane() as plane:
        yield plane
        plane.api.close()


@pytest.fixture(scope="module")
def empty_cluster() -> Iterator[Cluster]:
    """A control plane that knows nothing of ours; tests that share it clean up after themselves."""
    with control_plane() as plane:
        yield plane
        plane.api.close()


@pytest.fixture(scope="session")
def crd(cluster: Cluster) -> None:
    """AscendJob is defined, as an administrator would do it, and served."""
    cluster.kubectl("apply", "-f", str(CRD))
    wait_until_served(cluster)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """An empty namespace of the test's own."""
    with cluster.namespace("deploy") as name:
        yield name


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm itself."""
    try:
        return require("helm", "kubectl")["helm"]
    except Unavailable as error:
        _give_up(f"{error}")


@pytest.fixture
def installed() -> Iterator[Cluster]:
    """A cluster with nodes and Volcano, and everything of ours installed."""
    with control_plane(audit=True) as plane:
        install_crds(plane)
        plane.kubectl("apply", "--server-side", "-k", str(BASE))
        wait_until_served(plane)
        with Kubelets(plane), VolcanoStandIn(plane):
            yield plane
        plane.api.close()


@pytest.fixture
def account(installed: Cluster) -> User:
    """The controller's own account."""
    return installed.service_account(NAMESPACE, "taskd-controller")


@pytest.fixture
def log(installed: Cluster, account: User, tmp_path: Path) -> Iterator[Path]:
    """A controller that runs with the arguments of the Deployment; returns its log."""
    path = tmp_path / "controller.log"
    process = start(installed, account, path)
    until(lambda: '"synced"' in path.read_text() or process.poll() is not None, 30, path.read_text)
    yield path
    process.terminate()
    assert 0 == process.wait(15), path.read_text()


def start(cluster: Cluster, account: User, log: Path, *more: str) -> "subprocess.Popen[bytes]":
    (container,) = cluster.api.get(DEPLOYMENT)["spec"]["template"]["spec"]["containers"]
    assert ["taskd", "controller"] == container["command"]
    arguments = [argument.replace("$(POD_NAMESPACE)", NAMESPACE) for argument in container["args"]]
    # Where the account's token is, and a port that is free here: the only differences from the pod.
    arguments += ["--kubeconfig", str(account.kubeconfig), "--listen", "127.0.0.1:0", *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "taskd.cli.main", "controller", *arguments], stderr=stream, env=environment
        )


def control_plane(*, audit: bool = False) -> ControlPlane:
    """Return a control plane that is not started yet; skip where there can be none."""
    try:
        # Pods are placed by the stand-in for Volcano, or by nobody.
        return ControlPlane(scheduler=False, audit=audit)
    except Unavailable as error:
        _give_up(f"{error}")


def _give_up(reason: str) -> Never:
    """Skip, or fail where CI is set."""
    if os.environ.get("CI"):
        pytest.fail(f"{NOT_SHOWN}: {reason}", pytrace=False)
    pytest.skip(f"{NOT_SHOWN}: {reason}")
