"""Knocking at real doors: open, closed, and one at which the kernel lets nobody in any more."""

import asyncio
import socket
import time
from collections.abc import Callable, Collection

from taskd.core.reach import GONE, Knock, Patience
from taskd.links.knock import knock
from taskd.manager.reaching import Doors

QUICK = Patience(limit_s=0.6, suspect_s=0.2, every_s=0.05, answer_s=0.1, prove_s=0.05)


def door(backlog: int = 16) -> tuple[socket.socket, str]:
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.listen(backlog)
    return held, f"127.0.0.1:{held.getsockname()[1]}"


def crowd(address: str) -> list[socket.socket]:
    """Fill the queue before a door that nobody looks after: further knocks are dropped without a word."""
    host, _, port = address.rpartition(":")
    waiting = []
    for _ in range(4):
        caller = socket.socket()
        caller.setblocking(False)
        caller.connect_ex((host, int(port)))
        waiting.append(caller)
    return waiting


class Book:
    """Whom a manager gave up, and who is connected."""

    def __init__(self, *, spares: bool = True) -> None:
        self.lost: dict[str, tuple[str, bool]] = {}
        self.connected = {"1"}
        self.spares = spares
        self.doors = Doors(QUICK, lambda: self.connected, self.may_spare, self.give_up)

    def may_spare(self, _missed: Collection[str]) -> bool:
        return self.spares

    def give_up(self, node: str, why: str, *, cut: bool) -> None:
        self.lost[node] = (why, cut)

    async def watch(self, for_s: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Let the doors be watched for so long."""
        task = asyncio.ensure_future(self.doors.run())
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            await asyncio.sleep(0.05)
            meanwhile()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_three_kinds_of_doors() -> None:
    held, address = door()
    assert Knock.OPEN is await knock(address, 1.0)
    held.close()
    assert Knock.REFUSED is await knock(address, 1.0)
    deaf, address = door(0)
    callers = crowd(address)
    assert Knock.SILENT is await knock(address, 0.2)
    assert Knock.SILENT is await knock("nowhere", 0.2)
    for each in (deaf, *callers):
        each.close()


async def test_a_node_whose_machine_falls_silent_is_given_up_as_cut_off() -> None:
    held, address = door(0)
    book = Book()
    book.doors.open("1", address)
    await book.watch(0.3, lambda: book.doors.hear("1", time.monotonic()))
    assert {} == book.lost
    callers = crowd(address)
    await book.watch(1.2)
    why, cut = book.lost["1"]
    assert cut
    assert "out of reach" in why
    for each in (held, *callers):
        each.close()


async def test_a_node_that_says_nothing_but_whose_door_opens_is_kept() -> None:
    """It is busy, or stopped; nobody has to accept a connection for its kernel to take it."""
    held, address = door(64)
    book = Book()
    book.doors.open("1", address)
    await book.watch(1.5)
    assert {} == book.lost
    held.close()


async def test_a_launcher_that_is_gone_is_known_at_once() -> None:
    held, address = door()
    book = Book()
    book.doors.open("1", address)
    await book.watch(0.3, lambda: book.doors.hear("1", time.monotonic()))
    held.close()
    book.connected.clear()
    await book.watch(0.3)
    assert {"1": (GONE, False)} == book.lost


async def test_where_too_many_are_missed_nobody_is_given_up_as_cut_off() -> None:
    """Then it is this machine whose link is cut."""
    held, address = door(0)
    book = Book(spares=False)
    book.doors.open("1", address)
    await book.watch(0.3, lambda: book.doors.hear("1", time.monotonic()))
    callers = crowd(address)
    await book.watch(1.2)
    assert {} == book.lost
    for each in (held, *callers):
        each.close()
