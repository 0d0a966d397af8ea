"""Collectives under way, and how to let go of one that gloo has forgotten.

gloo writes what a rank sends from a thread of its own, once the peer has said that it is ready. Where the
peer dies just after saying so, that write fails, and gloo tells everybody who waits on the connection but
the one whose data it was: it has left one list and is not in the next. Its thread waits for the group's
timeout (``UnboundBuffer::waitSend``), the training thread waits for that thread, and neither a cut of the
connections nor ``abort`` wakes it. Two busy cores and four ranks see this about once in a hundred deaths.

So the training thread must be able to leave without gloo's. It waits for a *future* that the two share, and
the future can be completed here: then ``wait`` raises, and DDP, which waits in C++, does not find its
gradients there and raises too. What has to be sure before that:

- Nothing may come of the collective any more: a thread that is only slow would write to tensors that are in
  use again. With all connections cut, gloo is done when its workers have not run for a while, and the thread
  that could wake them sleeps, and so has seen the cut.
- The forgotten thread may never complete the future a second time, which would end the process. Its own
  timeout would do that, so gloo is given none, and the limit that the script asked for is kept here.

What is sent from rank to rank (a pipeline's stages) and reduce-scatter (FSDP's gradients) have no future. A
thread beside the caller's waits for those, and is left behind with them. Tensors of a device are not for us
to wait for, because of its streams: a rank that is forgotten there does not come out, and is replaced (see
``worker.watch``).
"""

import contextlib
import functools
import math
import queue
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from taskd.kit.procinfo import Threads, name_thread

NEVER = timedelta(days=3650)
QUIET_S = 0.2
CROWD = 32
WORKERS, POLLER = "pt_gloo_runloop", "gloo_tcp_loop"  # as torch and gloo name their threads
WAITER = "taskd-waiter"

# All that moves data, under the names of any version since 2.6; C++ and Python call by these names.
COLLECTIVES = (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "_allgather_base",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "recv",
    "recv_anysource",
    "reduce",
    "_reduce_scatter_base",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)

_SAME = (
    "_get_duration",
    "_get_op_type",
    "_get_sequence_number",
    "_source_rank",
    "block_current_stream",
    "boxed",
    "exception",
    "get_future",
    "get_future_result",
    "is_completed",
    "is_success",
    "result",
    "source_rank",
    "synchronize",
)


class Forgotten(RuntimeError):
    """A collective whose group is gone, and which gloo would never end."""

    def __init__(self) -> None:
        super().__init__("gloo group: connection closed, and nobody was told that this collective has failed")


class _Standing(Work):
    """Stands for a work of torch's, and is that in all but how it is waited for."""

    def __init__(self, work: Any) -> None:  # noqa: ANN401 - torch's own
        super().__init__()
        self._work = work
        self.overdue_at = math.inf
        self.generation = sys.maxsize  # nobody can be let go from it

    def is_over(self) -> bool:
        """Tell whether nobody has to be told of it any more."""
        raise NotImplementedError

    def let_go(self) -> None:
        """End it for all who wait here."""


def _same(name: str) -> Callable[..., Any]:
    def call(self: _Standing, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signatures
        return getattr(self._work, name)(*args, **kwargs)

    call.__name__ = name
    return call


for _name in _SAME:
    if hasattr(Work, _name):
        setattr(_Standing, _name, _same(_name))


class Watched(_Standing):
    """A collective that the training thread can be let go from."""

    def __init__(self, work: Any, future: torch.futures.Future[Any], generation: int) -> None:  # noqa: ANN401
        super().__init__(work)
        self._future = future
        self._let_go = False
        self.generation = generation

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done, or given up."""
        if timeout:
            limited: bool = self._work.wait(timeout)
            return limited
        with contextlib.suppress(RuntimeError):  # the work has the same error, and may have more to say
            self._future.wait()
        if self._let_go:
            raise Forgotten
        done: bool = self._work.wait()  # at once
        return done

    def get_future(self) -> torch.futures.Future[Any]:
        """DDP asks for it in every step."""
        return self._future

    def is_over(self) -> bool:
        """It is when it is done."""
        return self._future.done()

    def let_go(self) -> None:
        """End it for all who wait here; gloo's thread stays where it is."""
        self._let_go = True
        with contextlib.suppress(RuntimeError):  # it is done after all
            # DDP takes what it finds here for its gradients: too few of them are an error there as well.
            self._future.set_result(torch.empty(0))


class Waited(_Standing):
    """Something without a future: a thread beside the caller's waits for it."""

    def __init__(self, work: Any, works: "Works", generation: int, limit_s: float) -> None:  # noqa: ANN401
        super().__init__(work)
        self._works = works
        self._limit_s = limit_s
        self._over = True
        self._done = threading.Lock()
        self._error: BaseException | None = None
        self.generation = generation

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done, or given up."""
        if timeout:
            limited: bool = self._work.wait(timeout)
            return limited
        self._done.acquire()
        self._over, self.overdue_at = False, time.monotonic() + self._limit_s
        # In this order: whoever is let go leaves its thread behind, and the next one must not get behind it.
        self._works.waiter().begin(self)
        self._works.add(self)
        with self._done:  # when the other one, or ``let_go``, has let go of it
            error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # with its traceback it would be a cycle that holds the group
        return True

    def wait_beside(self) -> None:
        """Wait in the other thread."""
        try:
            self._work.wait()
        except Exception as error:  # noqa: BLE001 - the caller's
            self._end(error)
        else:
            self._end(None)

    def is_over(self) -> bool:
        """It is unless somebody waits."""
        return self._over

    def let_go(self) -> None:
        """End it for whoever waits; the other thread stays where it is, and gets no more to do."""
        self._works.leave_waiters()
        self._end(Forgotten())

    def _end(self, error: BaseException | None) -> None:
        with self._works.lock:
            if not self._over:
                self._error, self._over = error, True
                self._done.release()


class Waiter:
    """A thread that waits for what has no future, one after the other as its caller does."""

    def __init__(self) -> None:
        self._begun: queue.SimpleQueue[Waited | None] = queue.SimpleQueue()
        threading.Thread(target=_wait_beside, args=(self._begun,), name="taskd-waiter", daemon=True).start()

    def begin(self, waited: Waited) -> None:
        """Wait for this one too."""
        self._begun.put(waited)

    def __del__(self) -> None:
        self._begun.put(None)  # its caller has ended, or has left it behind


def _wait_beside(begun: "queue.SimpleQueue[Waited | None]") -> None:
    name_thread(WAITER)
    with torch.no_grad():  # some of them write their results when they are waited for
        while (waited := begun.get()) is not None:
            waited.wait_beside()
            del waited


class Works:
    """What is under way, over all groups of a process."""

    def __init__(self) -> None:
        self._works: list[_Standing] = []
        self.lock = threading.Lock()  # a script may have several threads that call
        self._gloo = Threads((WORKERS, WAITER), POLLER)
        self._waiters = threading.local()

    def add(self, work: _Standing) -> None:
        """Remember a collective until it is done; its tensors are not to live longer for that."""
        works = self._works
        with self.lock:
            while works and works[0].is_over():
                works.pop(0)
            if len(works) > CROWD:
                works[:] = [each for each in works if not each.is_over()]
            works.append(work)

    def forget(self) -> None:
        """Keep nothing of what is over.

        A work keeps the connections of its group, also when nobody else does, and gloo's thread then runs in
        circles over those that were cut: it would take a core from the replacement that all wait for.
        """
        with self.lock:
            self._works[:] = [each for each in self._works if not each.is_over()]

    def waiter(self) -> Waiter:
        """Return the thread beside this one."""
        found: Waiter | None = getattr(self._waiters, "own", None)
        if found is None:
            found = self._waiters.own = Waiter()
        return found

    def leave_waiters(self) -> None:
        """Whoever calls next gets another thread beside it."""
        self._waiters = threading.local()

    def is_overdue(self) -> bool:
        """Tell whether something has been under way for longer than its script wants to wait."""
        now = time.monotonic()
        return any(now >= each.overdue_at and not each.is_over() for each in self._under_way())

    def let_go(self, before: int) -> int:
        """Let go of what gloo has forgotten of earlier generations; ask again and again after their cut."""
        left = [each for each in self._under_way() if each.generation < before and not each.is_over()]
        if not left:
            self._gloo.forget()
            return 0
        if self._gloo.quiet_for() < QUIET_S:
            return 0
        for each in left:
            each.let_go()
        return len(left)

    def _under_way(self) -> list[_Standing]:
        with self.lock:
            return list(self._works)


class Watching:
    """Stands before a group of gloo's, and remembers what is begun there."""

    def __init__(self, real: Any, works: Works, generation: int, timeout: timedelta) -> None:  # noqa: ANN401
        self._real = real
        self._works = works
        self._generation = generation
        self._limit_s = timeout.total_seconds()
        self._futureless: set[str] = set()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the group's attributes
        found = getattr(self._real, name)
        # Nothing of it is kept here: a cycle would hold the group, and its connections, after its end.
        return functools.partial(self._begin, name, found) if callable(found) else found

    def _begin(self, operation: str, found: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self._watched(operation, found(*args, **kwargs), args)

    def _watched(self, operation: str, work: Any, args: tuple[Any, ...]) -> Any:  # noqa: ANN401 - torch's own
        if not isinstance(work, Work):
            return work
        on_host = _is_on_host(args)
        if operation not in self._futureless:
            try:
                future = work.get_future()
            except RuntimeError:
                self._futureless.add(operation)
            else:
                watched = Watched(work, future, self._generation if on_host else sys.maxsize)
                watched.overdue_at = time.monotonic() + self._limit_s
                self._works.add(watched)
                return watched if on_host else work
        return Waited(work, self._works, self._generation, self._limit_s) if on_host else work

    def set_timeout(self, timeout: timedelta) -> None:
        """The script's limit, which is kept here."""
        self._limit_s = timeout.total_seconds()


def _beginning(operation: str) -> Callable[..., Any]:
    # One for each: DDP's buckets come through here, and a look-up by name takes longer than the rest.
    def begin(self: Watching, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signatures
        return self._watched(operation, getattr(self._real, operation)(*args, **kwargs), args)

    begin.__name__ = operation
    return begin


for _name in COLLECTIVES:
    setattr(Watching, _name, _beginning(_name))


def _is_on_host(value: object) -> bool:
    """Tell where a call's tensors are; the first one is like all others."""
    while isinstance(value, (list, tuple)):
        if not value:
            return True
        value = value[0]
    return not isinstance(value, torch.Tensor) or value.is_cpu
