"""A controller for each test, with a namespace of its own, beside the played nodes and scheduler."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn, install_crds
from tests.kube.operator.site import ROOT, Controller, Site
from tests.kube.operator.town import Town

HERE = Path(__file__).parent
LIMIT_S = 400
"""A test of these is over in seconds where the machine has nothing else to do."""

EVERYTHING = {
    "huawei.com/Ascend910": 64,
    "huawei.com/Ascend910-8c": 8,
    "huawei.com/npu-core": 64,
    "huawei.com/npu": 64,
    "nvidia.com/gpu": 64,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder time."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


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
    # There is one at a time, so it needs no lease; on a busy machine it would lose it, or wait for its own.
    log = tmp_path / "controller.log"
    process = Controller(site.kube.kubeconfig, site.namespace, log, "--no-leader-elect").start()
    yield process
    _end(process)


@pytest.fixture(scope="module")
def town(
    kube: Cluster, inhabited: bool, crds: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Town]:
    """For the tests of a module together: a controller, nodes with the sample's label, and Volcano."""
    nodes = Nodes(kube)
    with kube.namespace("town") as namespace, VolcanoStandIn(kube) as volcano:
        nodes.add(4, capacity=EVERYTHING, labels={"example-key": "example-value"})
        log = tmp_path_factory.mktemp("town") / "controller.log"
        # Nobody takes over here, so the lease may last; a machine that is busy renews a short one too late.
        controller = Controller(kube.kubeconfig, namespace, log, "--lease-s", "60").start()
        yield Town(Site(kube, namespace), controller, nodes, volcano)
        _end(controller)
    nodes.remove_all()


def _end(process: Controller) -> None:
    """Stop a controller, and look whether it had anything to complain of."""
    code = process.stop()
    text = process.log.read_text()
    assert code == 0, text
    assert "look_broke" not in text, text
    assert "no_end_in_sight" not in text, text
