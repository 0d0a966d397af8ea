"""One real control plane for all cluster tests of a process, and what each test gets of it.

It takes four seconds to start, so it is shared. Tests are kept apart by a namespace each: what one leaves
behind another does not see, and nobody waits until it is gone. Nodes are cluster-wide; each test adds its
own and they are removed after it.

Where the programs cannot be had, the tests are skipped with one line that says what is missing. Where CI is
set, that is a failure.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from taskd.testing.kube import Cluster, ControlPlane, Kubelets, Nodes, Unavailable, VolcanoStandIn, existing
from taskd.testing.kube.binaries import CONTROL_PLANE, NOT_SHOWN, require
from taskd.testing.kube.nodes import MANAGED
from tests.left_out import leave_out

NEEDS = {"kube", "own_kube", "programs"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a cluster, or its programs, in this folder or elsewhere."""
    for item in items:
        if NEEDS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kube)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is missing before the first test: it takes minutes, and tests have a time limit."""
    wanted = any(item.get_closest_marker("kube") for item in session.items)
    if wanted and not session.config.option.collectonly:
        # Where it cannot be done the fixture says so.
        with suppress(Unavailable):
            require(*CONTROL_PLANE)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skip a test that wants to harm a cluster which was not started here."""
    try:
        return (yield)
    except Unavailable as error:
        leave_out(str(error))


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """The programs of a control plane, for a test that starts one of its own."""
    try:
        return require(*CONTROL_PLANE)
    except Unavailable as error:
        leave_out(f"{NOT_SHOWN}: {error}")


@pytest.fixture(scope="session")
def kube(programs: dict[str, Path]) -> Iterator[Cluster]:
    """A cluster with kubelets, shared by all tests of this process: our own with an audit log, as a rule."""
    with TemporaryDirectory() as directory:
        try:
            named = existing(programs["kubectl"], Path(directory))
        except Unavailable as error:
            leave_out(f"{NOT_SHOWN}: {error}")
        if named is not None:
            _refuse_machines(named)
            with Kubelets(named):
                yield named
            return
        with ControlPlane(audit=True) as plane, Kubelets(plane):
            yield plane


def _refuse_machines(named: Cluster) -> None:
    """Leave a cluster with real nodes alone: what these tests create has no image, and would be put there."""
    real = [name for name, played in _nodes(named).items() if not played]
    if real:
        leave_out(f"{NOT_SHOWN}: the cluster at {named.url} has nodes that nobody plays ({', '.join(real)})")


def _nodes(cluster: Cluster) -> dict[str, bool]:
    """The nodes that a cluster has, and whether kwok plays them."""
    found = cluster.api.items("/api/v1/nodes")
    return {each["metadata"]["name"]: MANAGED in each["metadata"].get("labels", {}) for each in found}


@pytest.fixture(scope="session")
def inhabited(kube: Cluster) -> bool:
    """Whether the cluster had nodes, and so a scheduler, before any test."""
    return not isinstance(kube, ControlPlane) and bool(_nodes(kube))


@pytest.fixture
def alone(inhabited: bool) -> None:
    """For a test that counts on there being no nodes and no Volcano but those that it brings."""
    if inhabited:
        leave_out("the cluster has nodes or a Volcano of its own, which would have their say")


@pytest.fixture
def own_kube(programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """A control plane of the test's own, for what the others must not feel (outages, other settings)."""
    with ControlPlane(audit=True) as plane, Kubelets(plane):
        yield plane


@pytest.fixture
def namespace(kube: Cluster) -> Iterator[str]:
    """A namespace of the test's own."""
    with kube.namespace() as name:
        yield name


@pytest.fixture
def nodes(kube: Cluster, inhabited: bool) -> Iterator[Nodes]:
    """No node yet: a test adds what it needs, and it is gone after it."""
    mine = Nodes(kube)
    yield mine
    mine.remove_all()


@pytest.fixture
def volcano(kube: Cluster) -> Iterator[VolcanoStandIn]:
    """Volcano, playing. A test may stop it, and start it again."""
    with VolcanoStandIn(kube) as player:
        yield player
