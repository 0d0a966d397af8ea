"""A manager.py in a pod that stands by for rank 0's begins when nobody manages elsewhere any more."""

import itertools
import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from taskd.manager.turn import MISSES, await_turn
from tests.core.acjob.samples import env_of, make_job, make_pods

POD = {
    **env_of(make_pods(make_job())["job-master-0"]),
    "MASTER_ADDR": "10.0.0.9",
    "TASKD_LEADER": "127.0.0.1",
}
STANDBY = "job-master-0-hot-ab12cd"


@pytest.fixture
def old_manager() -> Iterator[socket.socket]:
    """Somebody who listens where the leader is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize(("env", "hostname"), [(POD, "job-master-0"), ({}, "laptop")], ids=["pod", "no pod"])
def test_a_manager_with_a_place_begins_at_once(env: dict[str, str], hostname: str) -> None:
    """Nobody is asked."""
    pauses: list[float] = []
    await_turn(env, hostname, 1, pause=pauses.append)

    assert [] == pauses


def test_it_waits_until_the_other_one_is_gone(old_manager: socket.socket) -> None:
    """Not at the first refusal: behind the Service there are two pods, and one of them is this."""
    port = old_manager.getsockname()[1]
    pauses = itertools.count(1)
    last = 0

    def pause(_seconds: float) -> None:
        nonlocal last
        last = next(pauses)
        if last == 3:
            old_manager.close()

    await_turn(POD, STANDBY, port, pause=pause)

    assert 3 + MISSES == last


def test_a_connection_that_is_dropped_is_no_answer() -> None:
    """As by a proxy before the Service that finds nobody behind it."""
    pauses: list[float] = []
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        drops = threading.Thread(target=server.serve_forever, args=(0.05,))
        drops.start()
        await_turn(POD, STANDBY, server.server_address[1], pause=pauses.append)
        server.shutdown()
        drops.join()

    assert MISSES == len(pauses)


def test_a_refusal_among_answers_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of refusals counts only if no answer is in it."""
    answers = iter([*[True] * (MISSES - 1), False, *[True] * MISSES])
    monkeypatch.setattr("taskd.manager.turn._is_missed", lambda _host, _port: next(answers))
    await_turn(POD, STANDBY, 9601, pause=lambda _seconds: None)

    assert [] == list(answers)
