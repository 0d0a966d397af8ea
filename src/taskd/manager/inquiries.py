"""Orders whose answers somebody waits for, from one agent or from the workers of many nodes.

An answer that does not come within the limit is an answer too: the caller is told who was silent.
"""

import asyncio
from collections.abc import Callable, Iterable

from taskd.core.messages import Inject, OrderDone, WorkerOrder, WorkerOrderDone

LIMIT_S = 15.0


class Inquiries:
    """The questions that are open."""

    def __init__(self) -> None:
        """Begin with none."""
        self._orders: dict[str, asyncio.Future[OrderDone]] = {}
        self._workers: dict[str, tuple[set[str], dict[int, str], asyncio.Future[dict[int, str]]]] = {}

    async def ask_agent(self, node: str, order: Inject, send: Callable[[str, Inject], None]) -> OrderDone:
        """Give an order to an agent and wait for its answer."""
        waiter: asyncio.Future[OrderDone] = asyncio.get_running_loop().create_future()
        self._orders[order.order] = waiter
        send(node, order)
        try:
            async with asyncio.timeout(LIMIT_S):
                return await waiter
        except TimeoutError:
            return OrderDone(order.order, ok=False, detail=f"the agent of node {node} did not answer")
        finally:
            self._orders.pop(order.order, None)

    async def ask_workers(
        self, order: WorkerOrder, nodes: Iterable[str], send: Callable[[str], None]
    ) -> dict[int, str]:
        """Give an order to the workers of some nodes and gather what they answer."""
        waiter: asyncio.Future[dict[int, str]] = asyncio.get_running_loop().create_future()
        reachable = set(nodes)
        results: dict[int, str] = {}
        if not reachable:
            return results
        self._workers[order.order] = (reachable.copy(), results, waiter)
        for node in sorted(reachable):
            send(node)
        try:
            async with asyncio.timeout(LIMIT_S):
                return await waiter
        except TimeoutError:
            return results
        finally:
            self._workers.pop(order.order, None)

    def agent_answered(self, done: OrderDone) -> None:
        """Take an agent's answer in."""
        waiter = self._orders.pop(done.order, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(done)

    def workers_answered(self, done: WorkerOrderDone) -> None:
        """Take the answers of one node's workers in."""
        entry = self._workers.get(done.order)
        if entry is None:
            return
        waiting, results, waiter = entry
        waiting.discard(done.node)
        results.update(done.results)
        if not waiting and not waiter.done():
            waiter.set_result(results)
