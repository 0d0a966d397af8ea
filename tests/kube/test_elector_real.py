"""Leader election on a real API server, with real processes that are killed and stopped."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskd.core.lease import LeaseTimes
from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.kube.elector import Elector, LeadershipLost
from taskd.kube.errors import NotLeader
from taskd.kube.resources import CONFIG_MAP, LEASE
from taskd.testing.kube import Cluster, ControlPlane

# As short as a loaded machine allows; where time is not the point, leases are long.
TIMES = LeaseTimes(duration_s=4.0, renew_deadline_s=2.5, retry_s=0.5)
LONG = LeaseTimes(duration_s=60, renew_deadline_s=40, retry_s=10)

# Writes its name into a ConfigMap again and again while it leads. Told so, it stops itself (SIGSTOP) after
# some writes: before a write, or between the first question to the lease and the bytes.
SCRIPT = """
import asyncio, os, signal, sys
from taskd.core.lease import LeaseTimes
from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.kube.elector import Elector, LeadershipLost
from taskd.kube.errors import NotLeader
from taskd.kube.resources import CONFIG_MAP

async def main(kubeconfig, namespace, me, where):
    async with KubeClient(load_config(kubeconfig)) as client:
        elector = Elector(client, namespace, "lead", me, LeaseTimes(4.0, 2.5, 0.5))
        asked = 0
        def guard():
            nonlocal asked
            limit_s = elector.check()
            asked += 1
            if where == "between" and asked == 21:  # each write asks twice
                os.kill(os.getpid(), signal.SIGSTOP)
            return limit_s
        writer = client.guarded(guard)
        async def work():
            print("leading", flush=True)
            for number in range(10**9):
                if where == "before" and number == 10:
                    os.kill(os.getpid(), signal.SIGSTOP)
                await writer.patch(CONFIG_MAP, namespace, "count", {"data": {"by": me}})
                await asyncio.sleep(0.005)
        try:
            await elector.lead(work)
        except (LeadershipLost, NotLeader) as error:
            print(type(error).__name__, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def client(kube: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_config(kube.kubeconfig)) as made:
        yield made


@contextmanager
def candidate(
    kube: Cluster, namespace: str, me: str, stops: str = "never"
) -> Iterator[subprocess.Popen[str]]:
    source = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", SCRIPT, str(kube.kubeconfig), namespace, me, stops]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.kill()


async def says(child: subprocess.Popen[str], limit_s: float = 20.0) -> str:
    assert child.stdout is not None
    async with asyncio.timeout(limit_s):
        while True:
            line = (await asyncio.to_thread(child.stdout.readline)).strip()
            if line in {"leading", "LeadershipLost", "NotLeader", ""}:
                return line


async def test_one_leads_and_the_next_starts_at_once_when_it_stops(
    client: KubeClient, namespace: str
) -> None:
    """A clean stop releases the lease; the successor does not wait for it to run out."""
    first = Elector(client, namespace, "lead", "first", LONG)
    second = Elector(client, namespace, "lead", "second", LONG)
    log: list[tuple[str, float]] = []

    async def work(name: str) -> None:
        log.append((f"{name} begins", time.monotonic()))
        try:
            await asyncio.sleep(3600)
        finally:
            log.append((f"{name} ends", time.monotonic()))

    one = asyncio.create_task(first.lead(lambda: work("first")))
    while not first.holds():
        await asyncio.sleep(0.01)
    two = asyncio.create_task(second.lead(lambda: work("second")))
    async with asyncio.timeout(10):
        while not second.holder:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)

    assert (True, False) == (first.holds(), second.holds())
    assert "first" == second.holder
    with pytest.raises(NotLeader, match="second does not hold"):
        second.check()

    stopped = time.monotonic()
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    async with asyncio.timeout(5):
        while len(log) < 3:
            await asyncio.sleep(0.005)

    assert second.holds()
    assert ["first begins", "first ends", "second begins"] == [what for what, _ in log]
    assert log[2][1] - stopped < 5  # of a lease that is good for a minute
    two.cancel()
    await asyncio.gather(two, return_exceptions=True)
    spec = (await client.get(LEASE, namespace, "lead"))["spec"]
    assert (None, 1) == (spec.get("holderIdentity"), spec["leaseTransitions"])


async def test_of_many_candidates_one_leads(client: KubeClient, namespace: str) -> None:
    """They all start together on a lease that does not exist yet."""
    leading: list[str] = []

    async def lead(me: str) -> None:
        async def work() -> None:
            leading.append(me)
            await asyncio.sleep(3600)

        await Elector(client, namespace, "lead", me, LONG).lead(work)

    tasks = [asyncio.create_task(lead(f"c{n}")) for n in range(8)]
    await asyncio.sleep(3)

    assert 1 == len(leading)

    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_killed_leader_is_followed_when_its_lease_ends(
    kube: Cluster, client: KubeClient, namespace: str
) -> None:
    """Not before, and soon after."""
    await client.create(CONFIG_MAP, namespace, {"metadata": {"name": "count"}})
    with candidate(kube, namespace, "first") as first, candidate(kube, namespace, "second") as second:
        done, pending = await asyncio.wait(
            {asyncio.create_task(says(child), name=str(child.pid)) for child in (first, second)},
            return_when=asyncio.FIRST_COMPLETED,
        )
        leader, other = (first, second) if next(iter(done)).get_name() == str(first.pid) else (second, first)
        await asyncio.sleep(0.5)
        leader.kill()
        killed = time.monotonic()
        assert "leading" == await next(iter(pending))
        took_s = time.monotonic() - killed

        # The last renewal was up to a retry before the kill.
        assert TIMES.duration_s - TIMES.retry_s - 0.3 < took_s < TIMES.duration_s + 10
        assert other.poll() is None


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("where", ["before", "between"])
async def test_a_leader_that_was_stopped_writes_nothing_when_it_wakes(
    kube: ControlPlane, client: KubeClient, namespace: str, where: str
) -> None:
    """SIGSTOP before a write or on the way to the socket, until another leads; then SIGCONT.

    Between the last question and the system call that sends lie some ten microseconds that nobody can close
    from here; that a late write is harmless is the business of names, UIDs and versions.
    """
    await client.create(CONFIG_MAP, namespace, {"metadata": {"name": "count"}})
    with candidate(kube, namespace, "sleeper", where) as sleeper:
        assert "leading" == await says(sleeper)
        async with asyncio.timeout(30):
            while not is_stopped(sleeper.pid):
                await asyncio.sleep(0.02)
        with candidate(kube, namespace, f"heir-{uuid.uuid4().hex[:6]}") as heir:
            assert "leading" == await says(heir)
            await asyncio.sleep(0.3)
            version = (await client.get(CONFIG_MAP, namespace, "count")).metadata.resource_version
            seen: list[str] = []

            async def look() -> None:
                async for event in client.watch(CONFIG_MAP, namespace, resource_version=version):
                    if event.object is None or event.object.metadata.name != "count":
                        continue
                    seen.append(event.object.data["by"])

            looking = asyncio.create_task(look())
            sleeper.send_signal(signal.SIGCONT)
            assert await says(sleeper) in {"LeadershipLost", "NotLeader"}
            await asyncio.sleep(0.3)
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    assert "sleeper" not in seen


async def test_a_leader_without_a_server_stops_before_its_lease_ends(
    kube: ControlPlane, client: KubeClient, namespace: str
) -> None:
    """The work is cancelled by the renewal deadline, not by somebody else's success."""
    elector = Elector(client, namespace, "lead", "only", TIMES)
    ended: list[float] = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(time.monotonic())

    leading = asyncio.create_task(elector.lead(work))
    while not elector.holds():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    paused = time.monotonic()
    kube.apiserver.pause()
    try:
        with pytest.raises(LeadershipLost):
            async with asyncio.timeout(10):
                await leading
    finally:
        kube.apiserver.resume()
        await asyncio.to_thread(kube.wait_ready)

    assert TIMES.renew_deadline_s - TIMES.retry_s - 0.2 < ended[0] - paused < TIMES.duration_s
    assert not elector.holds()
