"""One real control plane for all cluster tests of a process, and what each test gets of it.

It takes some seconds to start, so it is shared. Tests are kept apart by a namespace each: what one leaves
behind another does not see, and nobody waits until it is gone. Nodes are cluster-wide; each test adds its
own and they are removed after it.

Where the programs cannot be had, the tests are skipped with one line that says what is missing, which is
printed again at the very end. Where CI is set, that is a failure.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, ControlPlane, Kubelets, Nodes, Unavailable, VolcanoStandIn
from taskd.testing.kube.binaries import CONTROL_PLANE, missing

NOT_SHOWN = "cluster tests not run, so nothing is shown about the operator on Kubernetes"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.kube)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """End with one line where nothing could be shown."""
    reason = missing(CONTROL_PLANE)
    if reason is not None:
        terminalreporter.write_line(f"NOT SHOWN: {NOT_SHOWN} ({reason})", yellow=True)


@pytest.fixture(scope="session")
def kube() -> Iterator[ControlPlane]:
    """A control plane with an audit log and kubelets, shared by all tests of this process."""
    try:
        plane = ControlPlane(audit=True)
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"{NOT_SHOWN}: {error}", pytrace=False)
        pytest.skip(f"{NOT_SHOWN}: {error}")
    with plane, Kubelets(plane):
        yield plane


@pytest.fixture
def namespace(kube: Cluster) -> Iterator[str]:
    """A namespace of the test's own."""
    with kube.namespace() as name:
        yield name


@pytest.fixture
def nodes(kube: Cluster) -> Iterator[Nodes]:
    """No node yet: a test adds what it needs, and it is gone after it."""
    mine = Nodes(kube)
    yield mine
    mine.remove_all()


@pytest.fixture
def volcano(kube: Cluster) -> Iterator[VolcanoStandIn]:
    """Volcano, playing. A test may stop it, and start it again."""
    with VolcanoStandIn(kube) as player:
        yield player
