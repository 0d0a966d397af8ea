"""A part of the manager that fails is begun again, and the log says why."""

import asyncio

import pytest
import structlog

from taskd.manager.parts import PAUSE_S, keep_running


class Frail:
    """Fails so many times, then has nothing to do."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise ValueError(f"failure {self.runs}")


@pytest.mark.looptime
@pytest.mark.parametrize("failures", [0, 3])
async def test_a_part_that_fails_begins_again(failures: int) -> None:
    """With a pause, so that one that fails at once does not take the processor."""
    part, began = Frail(failures), asyncio.get_running_loop().time()
    with structlog.testing.capture_logs() as told:
        await keep_running(part, structlog.get_logger())

    assert failures + 1 == part.runs
    assert failures * PAUSE_S <= asyncio.get_running_loop().time() - began
    assert [f"ValueError('failure {number + 1}')" for number in range(failures)] == [
        entry["error"] for entry in told
    ]
