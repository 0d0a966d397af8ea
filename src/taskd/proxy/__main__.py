"""Start a proxy: ``python -m taskd.proxy`` with its configuration in TASKD_ROLE_CONFIG."""

import asyncio
from collections.abc import Mapping

import msgspec

from taskd.core.succession import Follow
from taskd.kit.lifeline import Lifeline
from taskd.kit.logs import open_log
from taskd.kit.roles import read_config, run_role
from taskd.proxy.config import ProxyConfig
from taskd.proxy.relay import Proxy


async def main() -> int:
    """Relay until the launcher is gone."""
    config = read_config(ProxyConfig)
    lifeline = Lifeline()
    log = open_log(config.log_file, role="proxy", job=config.job, node=config.node)
    proxy = Proxy(config, log, lifeline)
    over = asyncio.Event()

    def told(note: Mapping[str, object]) -> None:
        if "follow" in note:
            where = msgspec.convert(note["follow"], Follow)
            proxy.follow(where.manager, where.term)

    lifeline.watch(over.set, told)
    async with asyncio.TaskGroup() as tasks:
        relay = tasks.create_task(proxy.run())
        beat = tasks.create_task(lifeline.beat())
        await over.wait()
        relay.cancel()
        beat.cancel()
    return 0


run_role(main)
