"""A controller for each test, with a namespace of its own, beside the played nodes and scheduler."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, install_crds
from tests.kube.operator.site import ROOT, Controller, Site


@pytest.fixture(scope="session")
def crds(kube: Cluster) -> None:
    """Our CRD and Volcano's, once."""
    kube.apply_yaml((ROOT / "deploy" / "crd" / "ascendjobs.yaml").read_text())
    install_crds(kube)


@pytest.fixture
def site(kube: Cluster, namespace: str, crds: None) -> Site:
    """The jobs of the test's namespace."""
    return Site(kube, namespace)


@pytest.fixture
def controller(site: Site, tmp_path: Path) -> Iterator[Controller]:
    """A running controller for the test's namespace."""
    process = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "controller.log").start()
    yield process
    code = process.stop()
    text = process.log.read_text()
    assert code == 0, text
    assert "look_broke" not in text, text
    assert "no_end_in_sight" not in text, text
