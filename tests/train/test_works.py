"""Collectives that gloo forgets are left, and nothing else is."""

import gc
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from taskd.kit.procinfo import Threads, name_thread
from taskd.train.torch.works import Forgotten, Waited, Watching, Works
from tests.train.crew import run_crew

dist: Any = torch.distributed  # its stores and groups are exported, but not for the type checker
LONG = timedelta(seconds=300)


class Slow:
    """A group whose one collective takes as long as the test wants."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        return _Work(self.future, tensors)


class _Work(dist.Work):  # type: ignore[misc] # a class of C++
    def __init__(self, future: torch.futures.Future[Any], tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.future, self.tensors = future, tensors

    def wait(self, timeout: object = None) -> bool:
        self.future.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self.future

    def result(self) -> list[torch.Tensor]:
        return self.tensors


class _Quick:
    def wait(self) -> bool:
        return True


class _Broken:
    def wait(self) -> bool:
        raise RuntimeError("broken")


class Quiet(Threads):
    """Threads that have been quiet for as long as the test says."""

    quiet_s = 0.0

    def quiet_for(self) -> float:
        return self.quiet_s


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Works:
    made = Works()
    monkeypatch.setattr(made, "_gloo", Quiet((), ""))
    return made


def test_a_collective_is_what_it_was(works: Works) -> None:
    """Everything is passed on, and what is done is not remembered."""
    real = dist.distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=LONG)
    group = Watching(real, works, 1, LONG)
    for _ in range(100):
        work = group.allreduce([torch.ones(3)])
        assert work.wait()
        assert [[1.0, 1.0, 1.0]] == [each.tolist() for each in work.get_future().value()]
        assert work.exception() is None
    assert 1 >= len(works._works)
    assert 1 == group.size()


def test_a_group_goes_with_its_last_user(works: Works) -> None:
    """Its end closes its connections; a cycle would put that off until garbage is collected."""
    group = Watching(Slow(), works, 1, LONG)
    gone = weakref.ref(group._real)
    group.allreduce([torch.ones(1)])
    gc.disable()
    try:
        del group
        assert gone() is None
    finally:
        gc.enable()


def test_what_has_no_future_is_limited_while_it_is_waited_for(works: Works) -> None:
    group = Watching(Slow(), works, 1, timedelta(seconds=0.05))
    group._futureless.add("allreduce")
    slow = group.allreduce([torch.ones(1)])
    time.sleep(0.06)
    assert not works.is_overdue()
    waiting = threading.Thread(target=slow.wait, daemon=True)
    waiting.start()
    time.sleep(0.1)
    assert works.is_overdue()
    group._real.future.set_result([])
    waiting.join(10)
    assert not works.is_overdue()


def test_what_has_no_future_raises_what_it_raised(works: Works) -> None:
    """In the thread that waits; and the next one is waited for as well."""
    real = dist.distributed_c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=LONG)
    group = Watching(real, works, 1, LONG)
    out, into = torch.zeros(2), torch.ones(2)
    for _ in range(3):
        assert group._reduce_scatter_base(out, into).wait()
    assert {"_reduce_scatter_base"} == group._futureless
    assert [1.0, 1.0] == out.tolist()
    with pytest.raises(RuntimeError, match="broken"):
        Waited(_Broken(), works, 1, 300.0).wait()
    assert group._reduce_scatter_base(out, into).wait()


def test_what_has_no_future_is_let_go(works: Works) -> None:
    """Its thread stays behind; whoever calls next gets another one."""
    group = Watching(Slow(), works, 1, LONG)
    group._futureless.add("allreduce")
    slow = group.allreduce([torch.ones(1)])
    seen: list[object] = []

    def wait() -> None:
        with pytest.raises(Forgotten):
            slow.wait()
        seen.append(Waited(_Quick(), works, 1, 300.0).wait())

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    Quiet.quiet_s = 1.0
    deadline = time.monotonic() + 10
    while not works.let_go(2) and time.monotonic() < deadline:
        time.sleep(0.001)
    Quiet.quiet_s = 0.0
    waiting.join(10)
    assert [True] == seen


def test_many_at_once_are_remembered_until_they_are_done(works: Works) -> None:
    first = Slow()
    Watching(first, works, 1, LONG).allreduce([torch.ones(1)])
    for _ in range(200):
        done = Slow()
        done.future.set_result([])
        Watching(done, works, 1, LONG).allreduce([torch.ones(1)])

    assert 40 > len(works._works)
    assert [first.future] == [each.get_future() for each in works._works if not each.is_over()]


def test_what_is_over_is_forgotten(works: Works) -> None:
    """A work keeps its group's connections, also those that were cut."""
    first, done = Slow(), Slow()
    for group in (first, done):
        Watching(group, works, 1, LONG).allreduce([torch.ones(1)])
    done.future.set_result([])

    works.forget()

    assert [first.future] == [each.get_future() for each in works._works]


def test_it_is_let_go_once_gloo_is_quiet(works: Works) -> None:
    """Not before, and not if it is of the generation that is entered."""
    group = Slow()
    work = Watching(group, works, 3, LONG).allreduce([torch.ones(1)])
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            work.wait()
        except Forgotten as error:
            seen.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert 0 == works.let_go(4)
    Quiet.quiet_s = 1.0
    assert 0 == works.let_go(3)
    assert waiting.is_alive()
    assert 1 == works.let_go(4)
    waiting.join(10)
    Quiet.quiet_s = 0.0
    assert not waiting.is_alive()
    assert 1 == len(seen)
    assert 0 == works.let_go(4)


def test_the_limit_of_the_script_is_kept(works: Works) -> None:
    group = Watching(Slow(), works, 1, timedelta(seconds=0.05))
    group.allreduce([torch.ones(1)])
    assert not works.is_overdue()
    time.sleep(0.06)
    assert works.is_overdue()

    patient = Works()
    group = Watching(Slow(), patient, 1, timedelta(seconds=0))
    group.set_timeout(LONG)
    group.allreduce([torch.ones(1)])
    assert not patient.is_overdue()


def test_threads_are_quiet_when_they_sleep_and_have_not_run() -> None:
    stop, tick = threading.Event(), threading.Event()

    def work() -> None:
        name_thread("tst-worker")
        while not stop.is_set():
            tick.wait()
            tick.clear()

    def poll() -> None:
        name_thread("tst-poller")
        while not stop.wait(0.01):
            pass

    threads = Threads(("tst-worker",), "tst-poller")
    assert 0 == threads.quiet_for()
    running = [threading.Thread(target=each) for each in (work, poll)]
    for each in running:
        each.start()
    try:
        _settle(threads)
        time.sleep(0.1)
        assert 0.1 <= _settle(threads)
        tick.set()
        time.sleep(0.05)
        assert 0.05 > threads.quiet_for()
    finally:
        stop.set()
        tick.set()
        for each in running:
            each.join()
    assert 0 == threads.quiet_for()


def _settle(threads: Threads) -> float:
    """Look until the poller is seen asleep, and the workers were so before."""
    deadline = time.monotonic() + 10
    while not (quiet_s := threads.quiet_for()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return quiet_s


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wait", "backward"])
def test_gloo_forgets_and_the_training_thread_comes_out(tmp_path: Path, kind: str) -> None:
    """The peer says that it is ready and dies; without our help nothing would wake this rank."""
    for help_, outcome in (("none", "stuck"), ("let-go", "out")):
        home = tmp_path / help_
        home.mkdir()
        found = run_crew("works_ranks.py", 2, home, kind, help_, wait_for=(0,))[0]
        assert outcome == found["how"], found
