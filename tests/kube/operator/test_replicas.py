"""Two replicas of the controller: one acts at a time, whatever happens to the other.

Who did what is read from the API server's own log: each replica has an account of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, Nodes, User, VolcanoStandIn
from tests.kube.operator.site import Controller, Site, until
from tests.kube.operator.town import NPU, job

LEASE_S = "10"


@dataclass
class Replica:
    """One of the two."""

    cluster: Cluster
    account: User
    process: Controller

    def writes(self, since: int) -> list[str]:
        """What it asked to be changed since then, refused or not."""
        found = self.cluster.audit.writes(since=since, user=self.account.name)
        return [f"{write.verb} {write.resource} {write.name} {write.code}" for write in found]

    def leads(self) -> bool:
        """Whether it has taken the lead at some time."""
        return '"synced"' in self.process.log.read_text()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process.process is not None
        os.kill(self.process.process.pid, number)


@pytest.fixture
def pair(kube: Cluster, site: Site, tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """A leader, and one that stands by."""
    replicas = []
    for name in ("first", "second"):
        account = kube.add_user(f"replica-{name}", cluster_role="cluster-admin")
        flags = ("--lease-s", LEASE_S, "--identity", name)
        log = tmp_path / f"{name}.log"
        process = Controller(account.kubeconfig, site.namespace, log, *flags)
        replicas.append(Replica(kube, account, process))
    first, second = replicas
    first.process.start()
    second.process.start(leads=False)
    yield first, second
    for replica in replicas:
        running = replica.process.process
        if running is not None and running.poll() is None:
            replica.send(signal.SIGCONT)
            replica.process.stop()


@pytest.fixture
def room(nodes: Nodes, volcano: VolcanoStandIn) -> Nodes:
    """Nodes, and somebody who places pods on them."""
    nodes.add(2, capacity={NPU: 1000})
    return nodes


def test_only_the_leader_writes(
    kube: Cluster, site: Site, pair: tuple[Replica, Replica], room: Nodes
) -> None:
    """The other one only watches: it asks for no change, of whatever kind."""
    first, second = pair
    mark = kube.audit.mark()
    name = site.submit(job("led", workers=3))
    site.wait_state(name, "Running")
    room.exit(site.namespace, "led-worker-1", 1)
    site.wait_state(name, "Failed")

    assert [] == second.writes(mark)
    assert first.writes(mark)
    assert not second.leads()


def test_after_kill_9_of_the_leader_the_other_goes_on(
    kube: Cluster, site: Site, pair: tuple[Replica, Replica], room: Nodes
) -> None:
    """What was lost while nobody acted is replaced, and counted once."""
    first, second = pair
    name = site.submit(job("carried", workers=3, policy={"backoffLimit": 1}))
    site.wait_state(name, "Running")
    before = {pod: content["metadata"]["uid"] for pod, content in site.pods(name).items()}
    first.process.kill()
    mark = kube.audit.mark()
    site.kube.kubectl("delete", "pod", "-n", site.namespace, "carried-worker-1", "--wait=false")
    until(second.leads)
    until(lambda: site.status(name)["restarts"] == 1)
    site.wait_state(name, "Running")
    after = {pod: content["metadata"]["uid"] for pod, content in site.pods(name).items()}

    assert {"carried-worker-1"} == {pod for pod in before if before[pod] != after.get(pod)}
    assert {"pod-lost": 1} == site.status(name)["restartCauses"]
    assert [] == first.writes(mark)


def test_a_leader_that_was_frozen_changes_nothing_after_the_take_over(
    kube: Cluster, site: Site, pair: tuple[Replica, Replica], room: Nodes
) -> None:
    """Stopped amid a burst of pods, it wakes up when another leads, and changes nothing any more.

    It asks whether it leads right before each write to a socket. A process can be stopped between that
    question and the send (one time in fifteen, in such a burst): that one request goes out when it wakes up,
    and the API server refuses it, because what it asks for is there already.
    """
    first, second = pair
    name = site.submit(job("frozen", workers=119, devices={NPU: 1}))
    until(lambda: len(site.pods(name)) > 20)
    first.send(signal.SIGSTOP)
    mark = kube.audit.mark()
    until(second.leads)
    site.wait_state(name, "Running")
    site.kube.kubectl("delete", "pod", "-n", site.namespace, "frozen-worker-7", "--wait=false")
    until(lambda: site.status(name)["restarts"] == 1)
    site.wait_state(name, "Running")
    in_flight = first.writes(mark)
    woken = kube.audit.mark()

    first.send(signal.SIGCONT)
    assert first.process.process is not None
    code = first.process.process.wait(60)

    late = first.writes(woken)
    assert len(late) <= 1
    assert [] == [write for write in late if not write.endswith(" 409")]
    assert code != 0
    assert "leadership lost" in first.process.log.read_text()
    # What it had sent before it was stopped may be answered afterwards; no more than its connections carry.
    assert len(in_flight) <= 16
    assert 120 == len(site.pods(name))
    status = site.status(name)
    assert (1, {"pod-lost": 1}) == (status["restarts"], status["restartCauses"])
