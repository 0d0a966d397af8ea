"""The console: log files are copied to the launcher's streams, whole, in order and without haste."""

import asyncio
import io
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from taskd.agent.console import IDLE_POLL_S, PARTIAL_S, Console


class Screen:
    """Two streams in memory with a console that runs."""

    def __init__(self) -> None:
        self.out, self.err = io.BytesIO(), io.BytesIO()
        self.console = Console(self.out, self.err)


@asynccontextmanager
async def screen() -> AsyncIterator[Screen]:
    made = Screen()
    task = asyncio.create_task(made.console.run())
    try:
        yield made
    finally:
        task.cancel()


async def until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def test_lines_arrive_while_the_file_grows(tmp_path: Path) -> None:
    """A file may appear later; each stream gets its own files, bytes unchanged."""
    out, err = tmp_path / "out", tmp_path / "err"
    async with screen() as s:
        s.console.follow(str(out), stream="stdout")
        s.console.follow(str(err), stream="stderr")
        append(out, b"one\n")
        await until(lambda: s.out.getvalue() == b"one\n")
        append(err, b"\xff\x00 two\n")
        append(out, b"three\r\n")
        await until(lambda: s.err.getvalue() == b"\xff\x00 two\n")
        await until(lambda: s.out.getvalue() == b"one\nthree\r\n")


async def test_every_line_has_its_prefix(tmp_path: Path) -> None:
    """The prefix stands before each line and nowhere else, also before an empty one."""
    path = tmp_path / "out"
    async with screen() as s:
        s.console.follow(str(path), stream="stdout", prefix="[default0]:")
        append(path, b"a\n\nb\nc")

        assert await s.console.drain()
        assert b"[default0]:a\n[default0]:\n[default0]:b\n[default0]:c" == s.out.getvalue()
        append(path, b"d\ne\n")
        assert await s.console.drain()
        assert s.out.getvalue().endswith(b"[default0]:cd\n[default0]:e\n")


async def test_an_unfinished_line_waits_a_moment_then_shows(tmp_path: Path) -> None:
    """A prompt or a progress bar is seen without its newline, but lines are not torn needlessly."""
    path = tmp_path / "out"
    async with screen() as s:
        s.console.follow(str(path), stream="stdout")
        append(path, b"10%\r")
        began = time.monotonic()
        await until(lambda: s.out.getvalue() == b"10%\r")

        assert time.monotonic() - began >= PARTIAL_S * 0.9


async def test_ranks_do_not_write_into_each_others_lines(tmp_path: Path) -> None:
    """Where lines are prefixed, an open line of one rank is ended before another rank's begins."""
    first, second = tmp_path / "0", tmp_path / "1"
    console_out = io.BytesIO()
    console = Console(console_out, io.BytesIO())
    console.follow(str(first), stream="stdout", prefix="[0]:")
    console.follow(str(second), stream="stdout", prefix="[1]:")
    append(first, b"half")
    assert await console.drain()
    append(second, b"other\n")
    assert await console.drain()
    append(first, b" line\n")
    assert await console.drain()

    assert b"[0]:half\n[1]:other\n[0]: line\n" == console_out.getvalue()


async def test_a_cut_or_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    """Truncation and rotation lose nothing that is written afterwards."""
    path = tmp_path / "out"
    async with screen() as s:
        s.console.follow(str(path), stream="stdout")
        append(path, b"before the cut\n")
        await until(lambda: s.out.getvalue().endswith(b"cut\n"))
        path.write_bytes(b"after\n")
        await until(lambda: s.out.getvalue().endswith(b"after\n"))
        path.rename(tmp_path / "old")
        append(path, b"a new file, longer than the old one\n")
        await until(lambda: s.out.getvalue().endswith(b"old one\n"))
        path.unlink()
        append(path, b"again\n")
        await until(lambda: s.out.getvalue().endswith(b"again\n"))


async def test_a_rank_that_is_done_is_shown_to_the_end_and_then_left(tmp_path: Path) -> None:
    """What was written before unfollow appears; a file followed again goes on where it was left."""
    path = tmp_path / "out"
    async with screen() as s:
        s.console.follow(str(path), stream="stdout")
        append(path, b"last\nwords")
        s.console.unfollow(str(path))
        await until(lambda: s.out.getvalue() == b"last\nwords")
        append(path, b"unseen\n")
        assert await s.console.drain()
        assert b"last\nwords" == s.out.getvalue()
        s.console.follow(str(path), stream="stdout")
        await until(lambda: s.out.getvalue() == b"last\nwordsunseen\n")


async def test_drain_shows_everything_however_much(tmp_path: Path) -> None:
    """Megabytes of both files are complete after one drain."""
    first, second = tmp_path / "0", tmp_path / "1"
    text = b"".join(b"line %d\n" % number for number in range(300_000))
    first.write_bytes(text)
    second.write_bytes(text)
    out, err = io.BytesIO(), io.BytesIO()
    console = Console(out, err)
    console.follow(str(first), stream="stdout")
    console.follow(str(second), stream="stderr", prefix="#")

    assert await console.drain()
    assert text == out.getvalue()
    assert text == err.getvalue().replace(b"#", b"")


async def test_a_stalled_terminal_stops_nobody(tmp_path: Path) -> None:
    """While nobody reads the terminal the loop goes on, memory stays bounded, and nothing is lost."""
    path = tmp_path / "out"
    text = b"0123456789abcde\n" * 1_000_000
    path.write_bytes(text)
    reader, writer = os.pipe()
    received = bytearray()

    with os.fdopen(writer, "wb", buffering=0) as stalled:
        console = Console(stalled, io.BytesIO())
        console.follow(str(path), stream="stdout")
        began = time.monotonic()
        assert not await console.drain(limit_s=0.3)
        assert time.monotonic() - began < 2.0
        assert console._waiting.qsize() <= 16
        thread = threading.Thread(target=read_to_end, args=(reader, received))
        thread.start()
        assert await console.drain(limit_s=20.0)
    thread.join()
    os.close(reader)

    assert text == bytes(received)


async def test_silence_costs_next_to_nothing(tmp_path: Path) -> None:
    """Looking at sixteen quiet files takes under 2 % of a core at the rate at which it is done."""
    console = Console(io.BytesIO(), io.BytesIO())
    for number in range(16):
        path = tmp_path / str(number)
        path.touch()
        console.follow(str(path), stream="stdout")
    used = time.process_time()
    for _ in range(100):
        assert not console._copy(time.monotonic())

    assert (time.process_time() - used) / 100 < 0.02 * IDLE_POLL_S


async def test_a_terminal_that_does_not_block_loses_nothing(tmp_path: Path) -> None:
    """A stream that another program has made non-blocking takes part of a write; the rest follows."""
    path = tmp_path / "out"
    text = b"0123456789abcde\n" * 20_000
    path.write_bytes(text)
    for buffering in (0, -1):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        received = bytearray()
        with os.fdopen(writer, "wb", buffering=buffering) as sink:
            console = Console(sink, io.BytesIO())
            console.follow(str(path), stream="stdout")
            thread = threading.Thread(target=read_to_end, args=(reader, received))
            thread.start()
            assert await console.drain(limit_s=20.0)
        thread.join()
        os.close(reader)

        assert text == bytes(received)


def read_to_end(fd: int, into: bytearray) -> None:
    while data := os.read(fd, 1 << 16):
        into.extend(data)
