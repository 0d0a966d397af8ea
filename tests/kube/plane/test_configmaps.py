"""The writer of ConfigMaps on a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.plane.configmaps import ConfigMaps, Wanted
from tests.kube.plane.ground import Ground


@asynccontextmanager
async def writer(ground: Ground, repair_s: float = 300.0) -> AsyncIterator[ConfigMaps]:
    async with KubeClient(load_config(ground.kube.kubeconfig)) as client:
        maps = ConfigMaps(client, repair_s=repair_s)
        task = asyncio.create_task(maps.run())
        try:
            yield maps
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_what_somebody_else_changed_is_mended(ground: Ground) -> None:
    """Deleted or edited, it is as it was after a while; keys that others have added stay."""
    async with writer(ground, repair_s=0.3) as maps:
        maps.want(ground.namespace, "m", Wanted({"a": "1"}, {"l": "x"}))
        await ground.until(lambda: {"a": "1"} == ground.data("m"))
        kubectl = ("-n", ground.namespace)
        await asyncio.to_thread(ground.kube.kubectl, *kubectl, "delete", "configmap", "m")
        await ground.until(lambda: {"a": "1"} == ground.data("m"))
        patch = '{"data":{"a":"2","b":"3"}}'
        await asyncio.to_thread(ground.kube.kubectl, *kubectl, "patch", "configmap", "m", "-p", patch)
        await ground.until(lambda: {"a": "1", "b": "3"} == ground.data("m"))


async def test_only_the_last_wish_is_written_and_a_repeated_one_is_not(ground: Ground) -> None:
    """Whoever says a thing a hundred times at once costs a request or two."""
    async with writer(ground) as maps:
        for number in range(100):
            maps.want(ground.namespace, "m", Wanted({"a": str(number)}))
        await ground.until(lambda: {"a": "99"} == ground.data("m"))
        maps.want(ground.namespace, "m", Wanted({"a": "99"}))
        await ground.until(lambda: maps.idle)
        assert maps.writes <= 2
        maps.want(ground.namespace, "m", Wanted(None))
        await ground.until(lambda: ground.config_map("m") is None)
        maps.want(ground.namespace, "m", Wanted({"a": "99"}))
        await ground.until(lambda: {"a": "99"} == ground.data("m"))


async def test_a_write_waits_for_its_namespace_and_holds_up_no_other(ground: Ground) -> None:
    """A namespace that nobody has made yet is told in the log, and the rest is written."""
    async with writer(ground) as maps:
        maps.want("not-there-yet", "m", Wanted({"a": "1"}))
        maps.want(ground.namespace, "m", Wanted({"a": "1"}))
        await ground.until(lambda: {"a": "1"} == ground.data("m"))
        assert maps.wants("not-there-yet", "m")
