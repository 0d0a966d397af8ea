"""What every test gets."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is says nothing about a promise; Hypothesis would fail a test for it. And where CI is
# set it would try the same examples every time.
settings.register_profile(
    "taskd", deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("taskd")


@pytest.fixture(autouse=True)
def close_stray_event_loop() -> Iterator[None]:
    """Close the loop that pytest-asyncio leaves set between tests.

    Before Python 3.12 it makes one by asking for "the current loop"; a later ``asyncio.run`` in the same
    thread drops it unclosed, and whichever test is running when it is collected gets the blame.
    """
    yield
    local = getattr(asyncio.get_event_loop_policy(), "_local", None)
    loop = getattr(local, "_loop", None)
    if loop is not None and not loop.is_running() and not loop.is_closed():
        loop.close()
        asyncio.set_event_loop(None)
