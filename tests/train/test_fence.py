import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from taskd.train.torch.fence import Interrupted, SocketFence, _sockets
from tests.train.crew import run_crew


class Scene:
    """A fence, and sockets that are closed when the test is over."""

    def __init__(self, stack: ExitStack) -> None:
        self.fence = SocketFence()
        self._stack = stack

    def listener(self) -> socket.socket:
        return self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))

    def connect_to(self, listener: socket.socket) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(listener.getsockname()))

    def connect(self, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        client = self._stack.enter_context(socket.create_connection(listener.getsockname()))
        server = self._stack.enter_context(listener.accept()[0])
        return client, server


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        made = Scene(stack)
        yield made
        made.fence.release()


def is_alive(pair: tuple[socket.socket, socket.socket]) -> bool:
    """Tell whether somebody who waits for what comes still waits, and gets it."""
    pair[1].setblocking(False)
    try:
        pair[1].recv(1)
    except BlockingIOError:
        pass
    else:
        return False
    try:
        pair[0].sendall(b"x")
    except OSError:
        return False
    pair[1].settimeout(1.0)
    return pair[1].recv(1) == b"x"


def test_only_the_connections_of_the_generation_are_cut(scene: Scene) -> None:
    """What was there before, what came after, listeners and unix sockets are left alone."""
    outside = scene.listener()
    before = scene.connect(outside)
    with scene.fence.recording(1):
        listener = scene.listener()
        first = scene.connect(listener)
        unix = socket.socketpair()
    after = scene.connect(outside)
    with scene.fence.recording(2):
        second = scene.connect(listener)

    count = scene.fence.cut(1)

    with unix[0], unix[1]:
        assert is_alive(unix)
    assert 2 == count
    assert [True, False, True, True] == [is_alive(pair) for pair in (before, first, after, second)]
    assert is_alive(scene.connect(listener))


def test_a_cut_takes_all_generations_up_to_its_own(scene: Scene) -> None:
    listener = scene.listener()
    pairs = []
    for generation in (1, 2, 3):
        with scene.fence.recording(generation):
            pairs.append(scene.connect(listener))

    scene.fence.cut(2)

    assert [False, False, True] == [is_alive(pair) for pair in pairs]


def test_a_peer_can_be_answered_until_all_are_out(scene: Scene) -> None:
    """Who waits for a send is forgotten if gloo cannot make it: the way out stays open, for a while."""
    now = [0.0]
    scene.fence = SocketFence(clock=lambda: now[0])
    listener = scene.listener()
    theirs = scene.connect_to(listener)
    with scene.fence.recording(1):
        mine = listener.accept()[0]

    scene.fence.cut(1)
    mine.close()  # as gloo does when it finds the end
    theirs.sendall(b"an answer")
    theirs.settimeout(0.05)
    with pytest.raises(TimeoutError):
        theirs.recv(1)
    now[0] = 2.0
    scene.fence.cut(1)

    theirs.settimeout(5.0)
    with contextlib.suppress(ConnectionResetError):
        assert b"" == theirs.recv(1)


def test_a_descriptor_that_was_given_away_is_not_cut(scene: Scene) -> None:
    """The number is the same, the socket is another one."""
    listener = scene.listener()
    with scene.fence.recording(1):
        client, server = scene.connect(listener)
    numbers = {client.fileno(), server.fileno()}
    client.close()
    server.close()
    later = scene.connect(listener)
    assert numbers == {sock.fileno() for sock in later}

    assert 0 == scene.fence.cut(1)
    assert is_alive(later)


def test_a_generation_that_was_cut_is_not_begun(scene: Scene) -> None:
    scene.fence.cut(4)

    for generation in (3, 4):
        with pytest.raises(Interrupted), scene.fence.recording(generation):
            pytest.fail("the block ran")
    with scene.fence.recording(5):
        pass


def test_a_cut_reaches_a_group_that_is_being_made(scene: Scene) -> None:
    """The thread that makes it waits inside the block, and is told by the end of it."""
    listener = scene.listener()
    before = scene.connect(listener)
    counts = []

    def cut() -> None:
        time.sleep(0.05)
        counts.append(scene.fence.cut(1))

    thread = threading.Thread(target=cut)
    thread.start()
    with pytest.raises(Interrupted), scene.fence.recording(1):
        assert b"" == scene.connect(listener)[0].recv(1)
    thread.join()

    assert [2] == counts
    assert is_alive(before)


def test_an_error_that_the_cut_caused_is_the_cause_of_the_interruption(scene: Scene) -> None:
    def fail() -> None:
        scene.fence.cut(1)
        raise ConnectionResetError("by the cut")

    with pytest.raises(Interrupted) as caught, scene.fence.recording(1):
        fail()

    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_an_error_of_the_block_itself_passes(scene: Scene) -> None:
    with pytest.raises(ValueError, match="own"), scene.fence.recording(1):
        raise ValueError("its own")


def test_a_late_cut_spares_the_group_that_is_being_made(scene: Scene) -> None:
    listener = scene.listener()
    with scene.fence.recording(2):
        pair = scene.connect(listener)
        assert 0 == scene.fence.cut(1)
        assert is_alive(pair)


def test_a_connection_that_is_being_made_is_cut(scene: Scene) -> None:
    """A node without power does not refuse: its peers would try for minutes."""
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    fillers = [socket.create_connection(full.getsockname())]
    with scene.fence.recording(1):
        waiting = socket.socket()
        waiting.setblocking(False)
        waiting.connect_ex(full.getsockname())
    with full, waiting, fillers[0]:
        time.sleep(0.05)
        try:
            waiting.getpeername()
        except OSError:
            assert 1 == scene.fence.cut(1)
            assert waiting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        else:
            pytest.skip("this kernel took the connection in")


def test_what_is_forgotten_is_not_cut(scene: Scene) -> None:
    listener = scene.listener()
    with scene.fence.recording(1):
        pair = scene.connect(listener)
    scene.fence.forget(1)

    assert 0 == scene.fence.cut(1)
    assert is_alive(pair)


def test_a_cut_leaves_no_descriptor_behind(scene: Scene) -> None:
    with scene.fence.recording(1):
        scene.connect(scene.listener())
    before = sorted(_sockets().values())

    scene.fence.cut(1)
    scene.fence.cut(1)
    scene.fence.release()

    assert before == sorted(_sockets().values())


@pytest.mark.slow
def test_survivors_of_a_stopped_rank_wake_and_go_on(tmp_path: Path) -> None:
    """They are out of their collective within 250 ms of the cut, and form a group of the rest.

    The new group outlives a late cut of the old one.
    """
    results = run_crew("fence_ranks.py", 4, tmp_path, "stopped", wait_for=(0, 1, 2))

    for result in results.values():
        assert result["awake_ms"] < 250
        assert result["cut"] >= 1  # that to the stopped one; the others may have cut ours first
        assert result["listeners"][0] >= 1
        assert result["listeners"][0] == result["listeners"][1]
        assert result["refused"]
        assert result["works"]
        assert 0 == result["late"]


@pytest.mark.slow
def test_a_rank_that_waits_for_an_absent_peer_wakes(tmp_path: Path) -> None:
    result = run_crew("fence_ranks.py", 1, tmp_path, "absent")[0]

    assert result["awake_ms"] < 250
    assert "there" == result["still"]


def test_severed_connections_are_not_a_cut(scene: Scene) -> None:
    """Only this generation's break, and it goes on: another group may be made, nothing is refused."""
    with scene.fence.recording(1):
        listener = scene.listener()
        first = scene.connect(listener)
    with scene.fence.recording(2):
        second = scene.connect(listener)

    assert 2 == scene.fence.sever(1)

    assert not is_alive(first)
    assert is_alive(second)
    with scene.fence.recording(1):
        third = scene.connect(listener)
    assert is_alive(third)
