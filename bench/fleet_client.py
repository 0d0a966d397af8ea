"""A thousand containers in one process: the real proxy and the real gRPC stream, in-memory links below.

What stands above the proxy is exactly what a container has. Below it a unix socket, an agent process and
eight training processes are replaced by objects that speak the same envelopes: workers acknowledge orders,
agents announce themselves, obey the start order and beat twice a second with new steps, as busy ones do. They
all share this one process, so the client's side is slower here than a thousand machines would be.
"""

import argparse
import asyncio
import os
import resource
import sys
import time
from collections.abc import Callable

import msgspec

from taskd.core.delivery import Channel
from taskd.core.launch import LOCAL_HOST
from taskd.core.messages import (
    MANAGER,
    Announce,
    Beat,
    LocalHello,
    OrderDone,
    Start,
    Upstream,
    WorkerOrder,
    WorkersStarted,
    WorkerState,
    WorkerView,
    agent_address,
    proxy_address,
    worker_address,
)
from taskd.kit.logs import open_log
from taskd.kit.machine import boot_id
from taskd.links.local import LocalLink
from taskd.proxy.config import ProxyConfig
from taskd.proxy.relay import Proxy
from taskd.wire.envelope import (
    Message,
    decode_envelope,
    encode_envelope,
    pack,
    pack_packet,
    unpack,
    unpack_packet,
)

BEAT_S = 0.5
BATCH = 50
BETWEEN_BATCHES_S = 0.05


class MemoryLink(LocalLink):
    """A link whose other end is an object in this process; ``hear`` takes what the proxy sends down."""

    def __init__(self, hear: Callable[[bytes], None]) -> None:
        self._hear = hear
        self._up: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(self) -> bytes | None:
        """Return the next message from below."""
        return await self._up.get()

    def send(self, data: bytes) -> bool:
        """Hand a message down in the next turn of the loop, as a socket would."""
        asyncio.get_running_loop().call_soon(self._hear, data)
        return True

    def put(self, data: bytes) -> None:
        """Send a message up."""
        self._up.put_nowait(data)


class SimulatedWorker:
    """A training process, as far as orders go: it acknowledges each one."""

    def __init__(self, job: str, node: str, rank: int) -> None:
        self._job = job
        self._address = worker_address(node, rank)
        self._proxy = proxy_address(node)
        self.link = MemoryLink(self._hear)
        self._say(LocalHello(self._address, "", os.getpid()))

    def _hear(self, data: bytes) -> None:
        message = unpack(decode_envelope(data))
        if isinstance(message, WorkerOrder):
            self._say(OrderDone(message.order, ok=True, detail="ok"))

    def _say(self, message: Message) -> None:
        self.link.put(encode_envelope(pack(self._job, self._address, self._proxy, message)))


class SimulatedAgent:
    """An agent without processes: it announces itself, starts nothing in no time, and beats."""

    def __init__(self, job: str, index: int, workers: int, boot: str) -> None:
        self.node = f"n{index}"
        self._job, self._index, self._workers, self._boot = job, index, workers, boot
        self._incarnation = f"agent-{index}"
        self._channel: Channel[Message] | None = None
        self._ranks: range = range(0)
        self._step = 0
        self.generation = 0
        self.link = MemoryLink(self._hear)
        hello = LocalHello(agent_address(self.node), self._incarnation, os.getpid())
        self.link.put(encode_envelope(pack(job, agent_address(self.node), proxy_address(self.node), hello)))

    def _hear(self, data: bytes) -> None:
        envelope = decode_envelope(data)
        if envelope.kind == Upstream.__name__:
            message = unpack(envelope)
            if isinstance(message, Upstream) and message.incarnation:
                self._meet(message.incarnation)
            return
        if self._channel is None:
            return
        received = self._channel.receive(unpack_packet(envelope), time.monotonic())
        for message in received.messages:
            if isinstance(message, Start):
                self._start(message)
        if received.owes_ack:
            self._put(self._channel.acknowledge())

    def _meet(self, incarnation: str) -> None:
        if self._channel is not None and self._channel.peer == incarnation:
            return
        self._channel = Channel(self._incarnation, incarnation)
        announce = Announce(
            node=self.node,
            wants_rank=self._index,
            addr=LOCAL_HOST,
            host=self.node,
            pid=os.getpid(),
            boot_id=self._boot,
            local_world=self._workers,
            free_port=20000,
        )
        self._put(self._channel.send(announce, time.monotonic()))

    def _start(self, order: Start) -> None:
        place = order.plan.place_of(self.node)
        if place is None or self._channel is None:
            return
        self.generation, self._ranks = order.plan.generation, place.ranks
        views = tuple(
            WorkerView(rank, local, os.getpid(), WorkerState.RUNNING, log=f"logs/{rank}")
            for local, rank in enumerate(self._ranks)
        )
        self._put(self._channel.send(WorkersStarted(self.generation, views), time.monotonic()))

    def beat(self) -> None:
        """Tell of new steps of all ranks."""
        if self._channel is None:
            return
        self._step += 1
        steps = dict.fromkeys(self._ranks, self._step)
        self._put(self._channel.send_unreliable(Beat(self.generation, steps, tuple(self._ranks))))

    def _put(self, packet: object) -> None:
        envelope = pack_packet(self._job, agent_address(self.node), MANAGER, self.generation, packet)  # type: ignore[arg-type]
        self.link.put(encode_envelope(envelope))


class SimulatedContainer(Proxy):
    """The real proxy with its children attached in memory instead of through a socket."""

    async def serve(self, links: list[MemoryLink]) -> None:
        """Relay until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for link in links:
                tasks.create_task(self._serve_child(link))
            tasks.create_task(self._keep_upstream())


async def main() -> None:
    """Open the fleet, tell on stdout how far it is, and live until stdin closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--manager", required=True)
    parser.add_argument("--token", default="")
    parser.add_argument("--job", required=True)
    parser.add_argument("--proxies", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--no-beats", action="store_true")
    args = parser.parse_args()
    log = open_log(os.devnull)
    boot = boot_id()
    agents: list[SimulatedAgent] = []
    async with asyncio.TaskGroup() as tasks:
        for index in range(args.proxies):
            agent = SimulatedAgent(args.job, index, args.workers, boot)
            agents.append(agent)
            first = index * args.workers
            workers = [SimulatedWorker(args.job, agent.node, first + local) for local in range(args.workers)]
            config = ProxyConfig(args.job, agent.node, args.manager, socket="", token=args.token)
            links = [agent.link, *(worker.link for worker in workers)]
            tasks.create_task(SimulatedContainer(config, log).serve(links))
            if not args.no_beats:
                tasks.create_task(_beat(agent, index / args.proxies * BEAT_S))
            if index % BATCH == BATCH - 1:
                await asyncio.sleep(BETWEEN_BATCHES_S)
        tasks.create_task(_report(agents))
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.buffer.read)
        os._exit(0)  # a thousand streams need no farewell


async def _beat(agent: SimulatedAgent, offset_s: float) -> None:
    await asyncio.sleep(offset_s)
    while True:
        agent.beat()
        await asyncio.sleep(BEAT_S)


async def _report(agents: list[SimulatedAgent]) -> None:
    while True:
        started = sum(agent.generation > 0 for agent in agents)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = usage.ru_utime + usage.ru_stime
        line = {"started": started, "cpu_s": cpu_s, "rss_mb": usage.ru_maxrss / 1024}
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
        sys.stdout.flush()
        await asyncio.sleep(0.25)


if __name__ == "__main__":
    asyncio.run(main())
