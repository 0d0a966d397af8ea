"""Start an agent: ``python -m taskd.agent`` with its configuration in TASKD_ROLE_CONFIG."""

import asyncio
import os
from collections.abc import Mapping

from taskd.agent.config import AgentConfig
from taskd.agent.nursery import take_sent
from taskd.agent.supervisor import Agent
from taskd.kit.lifeline import Lifeline
from taskd.kit.logs import open_log
from taskd.kit.roles import read_config, run_role


async def main() -> int:
    """Own the node's processes until the job is over."""
    config = read_config(AgentConfig)
    lifeline = Lifeline()
    log = open_log(config.log_file, role="agent", job=config.spec.job, node=config.node)
    agent = Agent(config, log, lifeline, take_sent(os.environ))
    gone = asyncio.Event()

    def told(note: Mapping[str, object]) -> None:
        if "stop" in note:
            agent.stop_here(str(note["stop"]))

    lifeline.watch(gone.set, told)
    work = asyncio.ensure_future(agent.run())
    others = [asyncio.ensure_future(lifeline.beat()), asyncio.ensure_future(gone.wait())]
    try:
        await asyncio.wait({work, others[1]}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, *others):
            task.cancel()
        await asyncio.gather(work, *others, return_exceptions=True)
    if not work.cancelled():
        work.result()
    return 0


run_role(main)
