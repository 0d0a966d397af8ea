"""Two ranks over gloo: the second one says that it is ready, and dies before the first one has read that.

The first is stopped meanwhile, so gloo's write meets a connection that was reset: whoever waits for it is
forgotten. The arguments say how it waits (``wait`` for a collective, or ``backward`` of a DDP), and whether
it is let go. The collective is a broadcast: whoever also receives may be told there that the peer is gone.
"""

import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from taskd.train.torch.fence import SocketFence, _sockets
from taskd.train.torch.groups import Groups
from taskd.train.torch.hooks import hook_groups
from taskd.train.torch.notes import Origin, SetupNotes

dist: Any = torch.distributed  # its stores are exported, but not for the type checker
NUMBERS = 400_000
SOON_S = 0.2
STUCK_S = 3.0


def continue_after_death(first: int) -> None:
    """Fork a child, while there are no connections that it could keep open: it continues the first rank."""
    death, alive = os.pipe()
    os.set_inheritable(alive, False)
    if os.fork():
        os.close(death)
        return
    os.close(alive)
    while os.read(death, 1):
        pass
    time.sleep(SOON_S)
    os.kill(first, signal.SIGCONT)
    os._exit(0)


def reset_at_death() -> None:
    """What a dead process had not read resets its connections; here they are reset in any case."""
    for fd in _sockets().values():
        with socket.socket(fileno=os.dup(fd)) as sock:
            if sock.family == socket.AF_INET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def join(fence: SocketFence, rank: int, store: Any) -> Groups:
    notes = SetupNotes(Path(os.environ["STORE"]).parent, Origin(1, rank, 2))
    groups = Groups(fence, lambda: 1, notes, alone=False)
    hook_groups(lambda: groups)
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            store.set("port", str(free.getsockname()[1]))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=store.get("port").decode())
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    return groups


def choose(kind: str) -> Callable[[], object]:
    if kind == "wait":
        data = torch.ones(NUMBERS)
        return lambda: dist.broadcast(data, 0)
    model = DistributedDataParallel(torch.nn.Linear(NUMBERS, 1, bias=False))
    loss = model(torch.ones(1, NUMBERS)).sum()
    inner = dist.group.WORLD.inner
    inner.allreduce = lambda tensors, _: inner.broadcast(tensors, dist.BroadcastOptions())
    return lambda: (loss.backward(), model)  # whose reducer would go with it


def main(kind: str, *, let_go: bool) -> object:
    rank = int(os.environ["RANK"])
    store = dist.FileStore(os.environ["STORE"], -1)
    if rank == 0:
        store.set("pid", str(os.getpid()))
    first = int(store.get("pid"))
    if rank == 1:
        continue_after_death(first)
    fence = SocketFence()
    groups = join(fence, rank, store)
    groups.set_up()
    act = choose(kind)
    if rank == 1:
        reset_at_death()
        store.wait(["begins"])
        time.sleep(SOON_S)
        os.kill(first, signal.SIGSTOP)
        threading.Thread(target=act, daemon=True).start()
        time.sleep(SOON_S)
        os.kill(os.getpid(), signal.SIGKILL)
    seen = {"cut": 0.0}

    def watch() -> None:
        time.sleep(5 * SOON_S)
        seen["cut"] = time.monotonic()
        fence.cut(1)
        while time.monotonic() < seen["cut"] + STUCK_S:
            time.sleep(0.1)
            if let_go:
                groups.let_go(2)
        print(json.dumps({"how": "stuck"}), flush=True)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    store.set("begins", "")
    try:
        act()
    except RuntimeError as error:
        return {"how": "out", "ms": 1e3 * (time.monotonic() - seen["cut"]), "error": str(error)}
    return {"how": "done"}


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("taskd").setLevel(logging.CRITICAL)
    answer = main(sys.argv[1], let_go=sys.argv[2] == "let-go")
    print(json.dumps(answer), flush=True)
    os._exit(0)
