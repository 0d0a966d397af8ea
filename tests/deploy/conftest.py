"""Real API servers for the tests of what is installed.

One has AscendJob defined, for the tests of the definition and the samples; each test has a namespace of its
own there. Others begin empty, for the tests that install and remove everything: those cannot take the
definition away from the others.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Never

import pytest

from taskd.testing.kube import Cluster, ControlPlane, Unavailable, require
from tests.deploy.support import CRD, wait_until_served

NOT_SHOWN = "nothing is shown about the installation on Kubernetes"
ON_A_CLUSTER = {"cluster", "empty_cluster", "kustomized", "installed"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder that need a cluster."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and ON_A_CLUSTER & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kube)


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
        return require("helm")["helm"]
    except Unavailable as error:
        _give_up(f"{error}")


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
