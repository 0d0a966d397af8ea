"""Events as kubectl shows them, and the recorder's manners when the server is slow or gone."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from taskd.kube.client import KubeClient
from taskd.kube.config import ClusterConfig, load_config
from taskd.kube.events import EventRecorder, ObjectRef
from taskd.kube.objects import Json
from taskd.kube.resources import CONFIG_MAP, EVENT
from taskd.testing.kube import Cluster


@asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[EventRecorder]:
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def client(kube: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_config(kube.kubeconfig)) as made:
        yield made


async def about(client: KubeClient, namespace: str) -> ObjectRef:
    made = await client.create(CONFIG_MAP.decoded(dict), namespace, {"metadata": {"name": "it"}})
    return ObjectRef.of(made)


async def events(client: KubeClient, namespace: str) -> list[Json]:
    found = (await client.list(EVENT, namespace)).items
    return [e for e in found if e["involvedObject"]["name"] == "it"]


async def test_an_event_is_found_under_its_object(kube: Cluster, client: KubeClient, namespace: str) -> None:
    """``kubectl describe`` shows reason, message and who said it."""
    it = await about(client, namespace)
    async with running(EventRecorder(client)) as recorder:
        recorder.normal(it, "Created", "all 4 pods are there")
        recorder.warning(it, "Trouble", "ö" * 2000)
        await recorder.flush(10)

    text = kube.kubectl("describe", "configmap", "it", "-n", namespace)
    assert "Created" in text
    assert "all 4 pods are there" in text
    assert "taskd-controller" in text
    cut = next(e["message"] for e in await events(client, namespace) if e["type"] == "Warning")
    assert len(cut.encode()) <= 1024
    assert cut.endswith("ö...")


async def test_repetitions_are_counted_and_not_sent_each(client: KubeClient, namespace: str) -> None:
    """A hundred times the same is one Event with a count, written twice."""
    it = await about(client, namespace)
    async with running(EventRecorder(client)) as recorder:
        for _ in range(100):
            recorder.warning(it, "Trouble", "again")
            await asyncio.sleep(0.002)
        await recorder.flush(10)

        assert 2 == recorder.stats.written
        (found,) = await events(client, namespace)
        assert (100, "again") == (found["count"], found["message"])

        recorder.warning(it, "Trouble", "something else")
        await recorder.flush(10)
        assert 2 == len(await events(client, namespace))


async def test_an_event_that_the_server_forgot_is_made_anew(client: KubeClient, namespace: str) -> None:
    """Events live for an hour; the count goes on in a new one."""
    it = await about(client, namespace)
    async with running(EventRecorder(client)) as recorder:
        recorder.normal(it, "Same", "m")
        await recorder.flush(10)
        (first,) = await events(client, namespace)
        await client.delete(EVENT, namespace, first["metadata"]["name"])
        recorder.normal(it, "Same", "m")
        await recorder.flush(10)

        (second,) = await events(client, namespace)
        assert 2 == second["count"]


async def test_a_later_period_begins_a_new_event(client: KubeClient, namespace: str) -> None:
    """What happened an hour ago and what happens now are two events."""
    it = await about(client, namespace)
    now = 0.0
    async with running(EventRecorder(client, period_s=600, now=lambda: now)) as recorder:
        recorder.normal(it, "Same", "m")
        await recorder.flush(10)
        now = 601.0
        recorder.normal(it, "Same", "m")
        await recorder.flush(10)

    assert [1, 1] == [e["count"] for e in await events(client, namespace)]


async def test_recording_never_waits() -> None:
    """Nobody answers: ten thousand notes take no time, what does not fit is dropped and counted."""
    async with KubeClient(ClusterConfig("http://127.0.0.1:9")) as client:
        recorder = EventRecorder(client, queue_size=100)
        it = ObjectRef("v1", "ConfigMap", "default", "it", "uid")
        async with running(recorder):
            began = time.monotonic()
            for number in range(10_000):
                recorder.normal(it, "Reason", f"message {number}")
            took_s = time.monotonic() - began

            assert took_s < 5
            assert 9_900 <= recorder.stats.dropped <= 10_000
            await asyncio.sleep(0.01)
            began = time.monotonic()
            await recorder.flush(0.2)
            assert time.monotonic() - began < 3
