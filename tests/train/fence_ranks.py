"""Ranks over gloo, the last of which stops; or one rank that waits for a peer that never comes."""

import json
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from taskd.train.torch.fence import Interrupted, SocketFence, _sockets, destroy_groups

dist: Any = torch.distributed  # its stores are exported, but not for the type checker
LONG = timedelta(seconds=300)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    return client, server


def make_group(fence: SocketFence, generation: int, rank: int, world: int, store: Any) -> None:
    with fence.recording(generation):
        prefixed = dist.PrefixStore(f"g{generation}", store)
        dist.init_process_group("gloo", store=prefixed, rank=rank, world_size=world, timeout=LONG)


def listeners(fence: SocketFence, generation: int) -> int:
    now = _sockets()
    count = 0
    for inode in fence._owned[generation] & now.keys():
        with socket.socket(fileno=os.dup(now[inode])) as sock:
            count += sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return count


def total(world: int) -> bool:
    value = torch.ones(1000)
    dist.all_reduce(value)
    return bool((value == world).all())


def stopped_peer(rank: int, world: int) -> dict[str, Any]:
    fence = SocketFence()
    before = tcp_pair()
    unix = socket.socketpair()
    store = dist.FileStore(os.environ["STORE"], -1)
    make_group(fence, 1, rank, world, store)
    assert total(world)
    if rank == world - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    marks: dict[str, Any] = {"listeners": listeners(fence, 1)}

    def cut() -> None:
        time.sleep(1.0)
        marks["begin"] = time.monotonic()
        marks["count"] = fence.cut(1)
        marks["end"] = time.monotonic()

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        total(world)
    except RuntimeError:
        marks["awake"] = time.monotonic()
    thread.join()
    listening = listeners(fence, 1)
    destroy_groups()
    refused = False
    try:
        with fence.recording(1):
            pass
    except Interrupted:
        refused = True
    made = time.monotonic()
    make_group(fence, 2, rank, world - 1, store)
    made = time.monotonic() - made
    works = total(world - 1)
    late = fence.cut(1)
    fence.forget(1)
    works = works and total(world - 1)
    for left, right in (before, unix):
        left.sendall(b"alive")
        assert b"alive" == right.recv(5)
    destroy_groups()
    return {
        "cut": marks["count"],
        "cut_ms": 1e3 * (marks["end"] - marks["begin"]),
        "awake_ms": 1e3 * (marks["awake"] - marks["begin"]),
        "listeners": [marks["listeners"], listening],
        "refused": refused,
        "made_ms": 1e3 * made,
        "works": works,
        "late": late,
    }


def absent_peer() -> dict[str, Any]:
    fence = SocketFence()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    begin = [0.0]

    def cut() -> None:
        time.sleep(0.7)
        begin[0] = time.monotonic()
        fence.cut(3)

    threading.Thread(target=cut).start()
    try:
        with fence.recording(3):
            store = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=LONG)
            dist.init_process_group("gloo", store=store, rank=0, world_size=2, timeout=LONG)
    except Interrupted as error:
        awake_ms = 1e3 * (time.monotonic() - begin[0])
        cause = type(error.__cause__).__name__
    # The server and its other clients go on.
    server.set("still", "there")
    return {"awake_ms": awake_ms, "cause": cause, "still": server.get("still").decode()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    me, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    answer = stopped_peer(me, size) if sys.argv[1] == "stopped" else absent_peer()
    print(json.dumps(answer), flush=True)
    os._exit(0)
