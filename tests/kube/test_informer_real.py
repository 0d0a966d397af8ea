"""The informer on a real API server, through its restart, and with our own writes in between."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.kube.errors import ApiError
from taskd.kube.informer import Informer, InformerTimes
from taskd.kube.objects import Json, Pod
from taskd.kube.resources import CONFIG_MAP, POD
from taskd.testing.kube import Cluster, ControlPlane

from .test_client_real import manifest


@pytest.fixture
async def client(kube: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_config(kube.kubeconfig)) as made:
        yield made


@asynccontextmanager
async def running(informer: Informer[Pod]) -> AsyncIterator[Informer[Pod]]:
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(20):
            await informer.synced()
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.01)


def owned(name: str, uid: str) -> Json:
    made = manifest(name)
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "controller": True}
    ]
    return made


async def test_the_store_is_the_cluster_after_random_work(client: KubeClient, namespace: str) -> None:
    """Creations and deletions of ours and of others, written through or not: in the end all agree."""
    rng = random.Random(5)
    owner = await client.create(CONFIG_MAP, namespace, {"metadata": {"name": "owner"}})
    async with running(Informer(client, POD, namespace=namespace)) as informer:

        async def work() -> None:
            for _ in range(12):
                name = f"p{rng.randrange(12)}"
                known = informer.get(namespace, name)
                try:
                    if known is None:
                        made = await client.create(POD, namespace, owned(name, owner.metadata.uid))
                        if rng.random() < 0.7:
                            informer.assume(made)
                            assert informer.get(namespace, name) is not None
                    else:
                        uid = known.metadata.uid
                        deletion = await client.delete(POD, namespace, name, uid=uid, grace_period_s=0)
                        if rng.random() < 0.7:
                            informer.assume_deletion(uid, deletion)
                            now = informer.get(namespace, name)
                            assert now is None or now.metadata.uid != uid
                except ApiError as error:
                    # Another worker was faster with the same name.
                    if not (error.already_exists or error.is_not_found or error.is_conflict):
                        raise

        await asyncio.gather(*(work() for _ in range(6)))
        listing = await client.list(POD, namespace)
        want = {p.metadata.uid: p.metadata.resource_version for p in listing.items}

        def have() -> dict[str, str]:
            return {p.metadata.uid: p.metadata.resource_version for p in informer.store}

        await until(lambda: want == have())

        assert set(want) == {p.metadata.uid for p in informer.owned_by(owner.metadata.uid)}
        assert 1 == informer.stats.lists


def settle(kube: ControlPlane) -> None:
    """Wait until the controller-manager has found the server again; its back-off takes half a minute.

    Until then a new namespace gets no service account, and the tests that follow have no namespace.
    """
    name = kube.api.create("/api/v1/namespaces", {"metadata": {"generateName": "settle-"}})["metadata"][
        "name"
    ]
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    kube.wait(lambda: kube.api.find(account), timeout_s=90, every_s=0.2)
    kube.delete_namespace(name)


@pytest.mark.timeout(240)
async def test_a_restart_of_the_server_loses_nothing(
    kube: ControlPlane, client: KubeClient, namespace: str
) -> None:
    """Killed and started again while pods come and go: the store agrees afterwards."""
    times = InformerTimes(first_pause_s=0.05, longest_pause_s=0.5)
    async with running(Informer(client, POD, namespace=namespace, times=times)) as informer:
        await client.create(POD, namespace, manifest("before"))
        await until(lambda: informer.get(namespace, "before") is not None)
        await asyncio.to_thread(kube.restart_apiserver)
        async with KubeClient(load_config(kube.kubeconfig)) as other:
            await other.delete(POD, namespace, "before", grace_period_s=0)
            await other.create(POD, namespace, manifest("after"))
        await until(lambda: {"after"} == {p.metadata.name for p in informer.store})
    await asyncio.to_thread(settle, kube)


async def test_a_stopped_server_is_noticed_and_survived(
    kube: ControlPlane, client: KubeClient, namespace: str
) -> None:
    """Its kernel still answers, so only the silence limit can tell; afterwards nothing is missing."""
    times = InformerTimes(silence_s=0.5, first_pause_s=0.05, longest_pause_s=0.3)
    async with running(Informer(client, POD, namespace=namespace, times=times)) as informer:
        kube.apiserver.pause()
        try:
            await until(lambda: informer.stats.failures > 0, limit_s=5)
        finally:
            kube.apiserver.resume()
        await asyncio.to_thread(kube.wait_ready)
        async with asyncio.timeout(10):
            await client.create(POD, namespace, manifest("a"))
        await until(lambda: informer.get(namespace, "a") is not None)
