"""A training thread that was called out of its step is given time while it computes, and little to sleep."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from taskd.worker.watch import LEAVE_PATIENCE, Leave

LIMIT_S = 0.2


@contextmanager
def thread_in(work: Callable[[threading.Event], object]) -> Iterator[threading.Thread]:
    """Run something in a thread for as long as it is looked at."""
    end = threading.Event()
    thread = threading.Thread(target=work, args=(end,))
    thread.start()
    try:
        yield thread
    finally:
        end.set()
        thread.join()


def compute(end: threading.Event) -> None:
    """Keep a processor busy."""
    while not end.is_set():
        sum(range(1000))


def look(leave: Leave) -> float:
    """Look ten times in each limit, as the watch does, and return when the time was up."""
    began = time.monotonic()
    while not leave.is_over():
        time.sleep(LIMIT_S / 10)
    return time.monotonic() - began


def test_a_sleeping_thread_is_given_up_at_the_limit() -> None:
    """It waits in a collective that nothing wakes."""
    with thread_in(threading.Event.wait) as thread:
        leave = Leave(thread, LIMIT_S)
        assert not leave.is_over()
        assert look(leave) >= LIMIT_S


def test_the_sleep_of_a_forked_process_is_seen() -> None:
    """Ranks are forked, and Python does not tell the main thread of a fork its own number."""
    script = """
import os, threading, time
from taskd.worker.watch import Leave
def look():
    leave = Leave(threading.main_thread(), 0.2)
    while not leave.is_over():
        time.sleep(0.02)
    print(leave._asleep_s > 0.2, flush=True)
    os._exit(0)
if os.fork() == 0:
    threading.Thread(target=look).start()
    time.sleep(60)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "True\n" == done.stdout


@pytest.mark.parametrize("rivals", [0, 4])
def test_a_computing_thread_is_given_more_time_but_not_all(rivals: int) -> None:
    """On a crowded machine too: a thread that waits for a processor does not sleep."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(rivals)]
    try:
        with thread_in(compute) as thread:
            assert look(Leave(thread, LIMIT_S)) >= LEAVE_PATIENCE * LIMIT_S / 2
    finally:
        for process in busy:
            process.kill()
            process.wait()
