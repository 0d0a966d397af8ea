"""A ground for each test of the plane."""

from contextlib import suppress

import pytest

from taskd.testing.kube import ApiError, Cluster, Nodes
from tests.kube.operator.site import ROOT, Site
from tests.kube.plane.ground import JOBS, Ground, make


@pytest.fixture(scope="session")
def job_crd(kube: Cluster) -> None:
    """Our CRD, once."""
    kube.apply_yaml((ROOT / "deploy" / "crd" / "ascendjobs.yaml").read_text())

    def served() -> bool:
        # Where the server has just learned of a kind it asks for patience with a 429.
        with suppress(ApiError):
            return kube.api.get(JOBS.format("default")) is not None
        return False

    kube.wait(served, timeout_s=60, every_s=0.1)


@pytest.fixture
def site(kube: Cluster, namespace: str, job_crd: None) -> Site:
    """The jobs of the test's namespace."""
    return Site(kube, namespace)


@pytest.fixture
def ground(kube: Cluster, namespace: str, nodes: Nodes, job_crd: None) -> Ground:
    """Two nodes, a namespace and no job yet."""
    return make(kube, namespace, nodes)
