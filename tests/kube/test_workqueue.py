"""The queue's promises, as a machine that Hypothesis drives and in virtual time."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.kube.workqueue import QueueClosed, WorkQueue

KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS),
        st.tuples(st.just("after"), KEYS, st.sampled_from([0.0, 0.5, 1.0, 3.0])),
        st.tuples(st.just("retry"), KEYS),
        st.tuples(st.just("forget"), KEYS),
        st.tuples(st.just("take")),
        st.tuples(st.just("done"), st.integers(0, 3)),
        st.tuples(st.just("sleep"), st.sampled_from([0.25, 1.0])),
    ),
    min_size=10,
    max_size=60,
)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer; an example of many seconds takes none."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0.0

    def time(self) -> float:
        return self._at

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._at = max(self._at, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Model:
    """What the queue should hold, in the simplest terms: a set, an ordered list, and due times."""

    def __init__(self) -> None:
        self.ready: list[str] = []
        self.again: set[str] = set()
        self.working: list[str] = []
        self.due: dict[str, float] = {}
        self.failed: Counter[str] = Counter()

    def add(self, key: str) -> None:
        if key in self.working:
            self.again.add(key)
        elif key not in self.ready:
            self.ready.append(key)

    def after(self, key: str, due: float) -> None:
        self.due[key] = min(due, self.due.get(key, due))

    def pass_time(self, now: float) -> None:
        # Of those due at the same instant the order is free, so the model takes the queue's word there.
        for key in sorted((k for k, due in self.due.items() if due <= now), key=lambda k: self.due[k]):
            del self.due[key]
            self.add(key)

    def done(self, key: str) -> None:
        self.working.remove(key)
        if key in self.again:
            self.again.discard(key)
            self.add(key)


@settings(max_examples=300)
@given(STEPS)
def test_the_queue_does_what_the_simple_model_does(steps: list[tuple[object, ...]]) -> None:
    """Any history leaves exactly the keys waiting that the model has, and each is held by one worker."""

    async def play() -> None:
        queue: WorkQueue[str] = WorkQueue(base_delay_s=0.5, longest_delay_s=4.0)
        model = Model()
        loop = asyncio.get_running_loop()
        for step in steps:
            match step:
                case ("add", str(key)):
                    queue.add(key)
                    model.add(key)
                case ("after", str(key), float(delay)):
                    queue.add_after(key, delay)
                    if delay:
                        model.after(key, loop.time() + delay)
                    else:
                        model.add(key)
                case ("retry", str(key)):
                    expected = min(0.5 * 2.0 ** model.failed[key], 4.0)
                    assert expected == queue.retry(key)
                    model.failed[key] += 1
                    model.after(key, loop.time() + expected)
                case ("forget", str(key)):
                    queue.forget(key)
                    del model.failed[key]
                case ("take",) if model.ready:
                    taken = await queue.get()
                    assert taken not in model.working
                    model.ready.remove(taken)
                    model.working.append(taken)
                case ("done", int(which)) if model.working:
                    key = model.working[which % len(model.working)]
                    queue.done(key)
                    model.done(key)
                case ("sleep", float(seconds)):
                    await asyncio.sleep(seconds)
                    model.pass_time(loop.time())
                case _:
                    pass
            assert len(model.ready) == len(queue)
            assert set(model.ready) == set(queue._ready)
        queue.shut_down()

    loop = VirtualLoop()
    try:
        loop.run_until_complete(play())
    finally:
        loop.close()


@given(st.lists(st.tuples(KEYS, st.sampled_from([0.0, 0.1, 0.7])), max_size=40), st.integers(1, 4))
def test_no_two_workers_have_one_key_and_none_is_forgotten(
    adds: list[tuple[str, float]], workers: int
) -> None:
    """With real workers: after its last addition each key is looked at once more."""

    async def play() -> None:
        queue: WorkQueue[str] = WorkQueue()
        busy: Counter[str] = Counter()
        looked_at: dict[str, float] = {}
        added_at: dict[str, float] = {}
        loop = asyncio.get_running_loop()

        async def handle(key: str) -> None:
            began = loop.time()
            busy[key] += 1
            assert 1 == busy[key]
            await asyncio.sleep(0.3)
            busy[key] -= 1
            looked_at[key] = began

        running = asyncio.create_task(queue.run(workers, handle))
        for key, pause in adds:
            queue.add(key)
            added_at[key] = loop.time()
            await asyncio.sleep(pause)
        queue.shut_down()
        await running
        assert added_at.keys() == looked_at.keys()
        assert all(looked_at[key] >= added_at[key] for key in added_at)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(play())
    finally:
        loop.close()


@pytest.mark.looptime
async def test_the_earliest_time_asked_for_wins() -> None:
    """A later wish does not postpone an earlier one, and the earlier fires once."""
    queue: WorkQueue[str] = WorkQueue()
    loop = asyncio.get_running_loop()
    began = loop.time()
    queue.add_after("a", 60)
    queue.add_after("a", 10)
    queue.add_after("a", 3600)

    assert "a" == await queue.get()
    assert 10 == pytest.approx(loop.time() - began)

    queue.done("a")
    await asyncio.sleep(7200)

    assert 0 == len(queue)


@pytest.mark.looptime
async def test_an_immediate_addition_keeps_the_timer() -> None:
    """A deadline in an hour still rings, although the key was looked at before."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 3600)
    queue.add("a")

    assert "a" == await queue.get()

    queue.done("a")
    async with asyncio.timeout(3601):
        assert "a" == await queue.get()


@pytest.mark.looptime
async def test_a_busy_key_does_not_starve_the_others() -> None:
    """Whoever is added again goes to the end of the line."""
    queue: WorkQueue[str] = WorkQueue()
    order: list[str] = []
    for key in "abc":
        queue.add(key)
    for _ in range(6):
        key = await queue.get()
        order.append(key)
        queue.add(key)
        queue.done(key)

    assert list("abcabc") == order


@pytest.mark.looptime
async def test_back_off_doubles_up_to_its_limit_and_is_forgotten() -> None:
    """5 ms, 10 ms, … 60 s; after a success it starts anew."""
    queue: WorkQueue[str] = WorkQueue(base_delay_s=0.005, longest_delay_s=60.0)

    delays = [queue.retry("a") for _ in range(20)]

    assert [0.005, 0.01, 0.02] == delays[:3]
    assert 60.0 == delays[-1]
    assert 20 == queue.failures("a")

    queue.forget("a")

    assert 0.005 == queue.retry("a")
    assert 7.5 == queue.retry("a", at_least_s=7.5)


async def test_a_cancelled_worker_passes_its_wake_up_on() -> None:
    """The key goes to the next worker when the one that was woken is cancelled in the same moment."""
    queue: WorkQueue[str] = WorkQueue()
    first = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()

    async with asyncio.timeout(1):
        assert "a" == await second


async def test_a_closed_queue_serves_what_waits_and_ends() -> None:
    """Shutting down loses nothing that was ready, and takes nothing new."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add_after("b", 0.01)
    queue.shut_down()
    queue.add("c")

    assert "a" == await queue.get()
    with pytest.raises(QueueClosed):
        await queue.get()


async def test_the_hooks_hear_of_depth_and_waiting() -> None:
    """Depth rises and falls; waiting and working times are told once per key."""

    class Hooks:
        def __init__(self) -> None:
            self.depths: list[int] = []
            self.waits: list[float] = []
            self.works: list[float] = []
            self.retries = 0

        def depth(self, waiting: int) -> None:
            self.depths.append(waiting)

        def waited(self, seconds: float) -> None:
            self.waits.append(seconds)

        def worked(self, seconds: float) -> None:
            self.works.append(seconds)

        def retried(self) -> None:
            self.retries += 1

    hooks = Hooks()
    queue: WorkQueue[str] = WorkQueue(hooks=hooks)
    queue.add("a")
    queue.add("b")
    queue.done(await queue.get())
    queue.retry("a")

    assert [1, 2, 1] == hooks.depths
    assert (1, 1, 1) == (len(hooks.waits), len(hooks.works), hooks.retries)
    queue.shut_down()
