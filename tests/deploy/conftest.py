"""A real API server with AscendJob known to it."""

from collections.abc import Iterator

import pytest

from taskd.testing.kube.cluster import Cluster
from taskd.testing.kube.controlplane import ControlPlane
from tests.deploy.support import CRD, wait_until_served


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with ControlPlane(scheduler=False) as plane:
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
