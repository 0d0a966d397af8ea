"""Promises of the way from one group to the next."""

import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from taskd.core.messages import Regroup
from taskd.train.torch.fence import Interrupted, SocketFence
from taskd.train.torch.groups import Groups
from taskd.train.torch.meeting import Meeting
from taskd.worker.client import Worker
from taskd.worker.watch import Watch

SOON_S = 1.9  # less than a process that was called has before it is ended (worker.watch)


class _Watch:
    """Hears of the generation that all enter, and then of the next one."""

    def __init__(self) -> None:
        self.raised = (5, 0)


def test_a_leader_that_dies_before_its_store_was_reached_holds_nobody() -> None:
    """Survivors come out at the next call; torch would try to reach the dead store for a minute."""
    watch, fence = _Watch(), SocketFence()
    meeting = Meeting(cast("Worker", None), cast("Watch", watch), fence, cast("Groups", None), rank=1)
    leader = socket.create_server(("127.0.0.1", 0))
    connected = threading.Event()

    def die() -> None:
        """Take one connection, answer nothing, and be gone."""
        connection, _ = leader.accept()
        connected.set()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        leader.close()

    regroup = Regroup(5, f"127.0.0.1:{leader.getsockname()[1]}", target=3, top=3, receivers=())
    with ThreadPoolExecutor(2) as pool:
        pool.submit(die)
        joined = pool.submit(meeting._join, regroup)
        assert connected.wait(10)
        called = time.monotonic()
        watch.raised = (6, 1)
        fence.cut(5)

        with pytest.raises(Interrupted):
            joined.result(30)

    fence.release()
    assert time.monotonic() - called < SOON_S
