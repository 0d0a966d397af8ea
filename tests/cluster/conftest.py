"""One real cluster of three nodes for all tests of a process that need one.

It takes ten seconds to start, so it is shared; each test has a namespace of its own. A cluster that
``make cluster`` has started is used instead where KUBECONFIG names it. Where there can be none (no root, no
packages, no Go), the tests are skipped with one line that says what is missing; where CI is set, that is a
failure.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from taskd.testing.cluster import (
    NOT_SHOWN,
    ControllerProcess,
    DevicePlugins,
    RealCluster,
    RealNodes,
    borrowed,
    require,
)
from taskd.testing.kube import Unavailable
from tests.cluster.jobs import LONG, NAME, STEPS, WORLD, PodJob, install_definition
from tests.cluster.pairs import Pair, Results
from tests.cluster.pods import column
from tests.kube.operator.site import Controller, Site
from tests.left_out import leave_out
from tests.train.runs import Run, read_run

LIMIT_S = 400


class UndisturbedRun(NamedTuple):
    """A job that nothing happened to."""

    run: Run
    restarts: dict[str, str]
    row: list[str]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs real nodes."""
    for item in items:
        if "nodes_possible" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kube)
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(LIMIT_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install and build what is missing before the first test: that takes minutes."""
    wanted = any(item.get_closest_marker("cluster") for item in session.items)
    if wanted and not session.config.option.collectonly:
        # Where it cannot be done the fixture says so.
        with suppress(Unavailable):
            require()


@pytest.fixture(scope="session")
def nodes_possible() -> None:
    """For a test that starts a cluster of its own."""
    try:
        require()
    except Unavailable as error:
        leave_out(f"{NOT_SHOWN}: {error}")


@pytest.fixture(scope="session")
def cluster(nodes_possible: None) -> Iterator[RealNodes]:
    """Three nodes, shared by all tests of this process."""
    with TemporaryDirectory() as directory:
        named = borrowed(Path(directory))
        if named is not None:
            yield named
            return
        with RealCluster() as started:
            yield started


@pytest.fixture
def namespace(cluster: RealNodes) -> Iterator[str]:
    """A namespace of the test's own."""
    with cluster.namespace() as name:
        yield name


@pytest.fixture(scope="session")
def definition(cluster: RealNodes) -> None:
    """The AscendJob type, once."""
    install_definition(cluster)


@pytest.fixture
def site(cluster: RealNodes, namespace: str, definition: None, tmp_path: Path) -> Iterator[Site]:
    """The jobs of the test's namespace, with a running `taskd controller`."""
    with controlled(cluster, namespace, tmp_path) as found:
        yield found


@contextmanager
def controlled(cluster: RealNodes, namespace: str, directory: Path, *flags: str) -> Iterator[Site]:
    """Run a controller for one namespace."""
    log = directory / "controller.log"
    controller = Controller(cluster.kubeconfig, namespace, log, "--no-leader-elect", *flags).start()
    try:
        yield Site(cluster, namespace)
    finally:
        assert 0 == controller.stop(), log.read_text()


class Planned(NamedTuple):
    """The jobs of the test's namespace, and the controller that is their control plane."""

    site: Site
    controller: ControllerProcess

    @property
    def plane(self) -> str:
        """Where managers find it."""
        return self.controller.plane


@pytest.fixture
def planned(cluster: RealNodes, namespace: str, definition: None, tmp_path: Path) -> Iterator[Planned]:
    """A running controller with a plane."""
    controller = ControllerProcess(cluster, namespace, tmp_path / "controller.log", plane=True).start()
    try:
        yield Planned(Site(cluster, namespace), controller)
    finally:
        assert 0 == controller.stop(), controller.log.read_text()


@pytest.fixture
def devices(cluster: RealNodes) -> Iterator[DevicePlugins]:
    """Four devices on each node: two pods have room there."""
    with DevicePlugins(cluster, 4) as plugins:
        yield plugins


@pytest.fixture(scope="session")
def undisturbed(
    cluster: RealNodes, definition: None, tmp_path_factory: pytest.TempPathFactory
) -> UndisturbedRun:
    """A job that nothing happens to, run once: what it computed, and how kubectl showed it at the end."""
    return _run_undisturbed(cluster, tmp_path_factory.mktemp("undisturbed"), STEPS)


@pytest.fixture(scope="session")
def long_undisturbed(
    cluster: RealNodes, definition: None, tmp_path_factory: pytest.TempPathFactory
) -> UndisturbedRun:
    """The same with more steps: for tests in which a job trains while a pod is made."""
    return _run_undisturbed(cluster, tmp_path_factory.mktemp("long"), LONG)


@pytest.fixture(scope="session")
def calm_pair(cluster: RealNodes, definition: None, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What a pair that nothing happens to computes."""
    home = tmp_path_factory.mktemp("calm-pair")
    with cluster.namespace("calm") as namespace, controlled(cluster, namespace, home) as site:
        job = Pair(cluster, site, home / "out")
        job.submit({})
        job.finish()
        return job.run()


def _run_undisturbed(cluster: RealNodes, home: Path, steps: int) -> UndisturbedRun:
    with cluster.namespace("calm") as namespace, controlled(cluster, namespace, home) as site:
        job = PodJob(cluster, site, home / "out", pause_s=0, steps=steps)
        job.submit("recover-in-place,recover")
        job.finish()
        restarts = column(cluster, namespace, ".status.containerStatuses[0].restartCount")
        said = cluster.kubectl("get", "acjob", "-n", namespace, NAME, "--no-headers")
        return UndisturbedRun(read_run(job.out, WORLD), restarts, said.split())
