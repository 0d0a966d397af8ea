"""News of jobs waits for the end of a rush, and no longer."""

from taskd.kube.workqueue import WorkQueue
from taskd.operator.held import CROWD, Held, Key


def keys(count: int, name: str = "job") -> list[Key]:
    return [("default", f"{name}-{number}") for number in range(count)]


async def test_news_is_told_only_when_there_is_no_crowd() -> None:
    """Every look that ends lets as many jobs come as do not make a crowd, the first ones first."""
    queue: WorkQueue[Key] = WorkQueue()
    held = Held(queue)
    waiting = keys(CROWD + 2, "waiting")
    for key in keys(CROWD):
        queue.add(key)
    for key in waiting:
        held.hold(key)
    assert held.crowded
    held.let_go()
    assert CROWD == queue.load

    served = []
    while queue.load:
        served.append(await queue.get())
        held.let_go()
        queue.done(served[-1])
        assert queue.load <= CROWD
    assert [*keys(CROWD), *waiting] == served


async def test_a_job_that_was_looked_at_is_not_looked_at_for_its_news() -> None:
    queue: WorkQueue[Key] = WorkQueue()
    held = Held(queue)
    first, second = keys(2)
    held.hold(first)
    held.hold(second)
    held.drop(first)
    held.let_go()
    assert (second, 0) == (await queue.get(), queue.load - 1)
