"""The warm process: it has done the imports, and turns into workers by forking.

Importing torch takes seconds and must not hold up the nursery, which guards running workers; so it happens
in a process of its own. A worker forked from it must not depend on it either: it is forked twice, the
process in between ends, and the kernel hands the worker to the nearest reaper of orphans, which is the
nursery. The nursery then waits for it as for any child, and the death of the warm process costs warmth only.

A forked process is first *parked*: it ties its life to the nursery, says hello on a socket of its own and
waits there for its launch. Taking a spare and forking on demand are thus the same thing, early or late.

While it waits, a parked process may go on preparing itself, with what cannot be done before a fork (a
device's context): the warm-up's module says how, in steps, and a launch that arrives ends it after one.

Where the warm-up leaves threads behind, forking would copy their locks but not them. Then each spare is a
fresh process that has done the warm-up itself, and only the parking is shared.

When a launch arrives the functions here return it to ``main``, so that the user's program runs at the top
of the stack and ends as an interpreter ends.
"""

import atexit
import gc
import importlib
import os
import random
import select
import socket
import sys
import threading
from collections.abc import Callable

from taskd.agent import newborn, program
from taskd.agent.nursery_wire import Frames, WorkerLaunch, encode, parse_launch

FORK = "fork"
SPARE = "spare"

_ADOPTION_S = 5.0
# A process that is wanted at once must not find itself in the middle of preparing.
_IDLE_S = 1.0
_CHUNK = 1 << 16
# Room for a worker's command line, see newborn.rename.
_ROOM = " " * 1024


def command_line(role: str, fd: int, log_fd: int, nursery: int, warm: str) -> list[str]:
    """Return the command that starts a warm process, or a spare where forking is not safe."""
    boot = program.BOOT.format(module=__name__)
    return [sys.executable, "-u", "-c", boot, role, str(fd), str(log_fd), str(nursery), warm, _ROOM]


def main() -> None:
    """Warm up, serve, and become the worker whose launch arrives."""
    role, fd, log_fd, nursery, warm = sys.argv[1:6]
    newborn.rename(["taskd", role, "(loading)"])
    sock = socket.socket(fileno=int(fd))
    sock.set_inheritable(False)
    outputs = _divert_output(int(log_fd))
    launch = _serve(role, sock, int(nursery), warm)
    if launch is None:
        os._exit(0)
    _become(launch, outputs)
    _renew(warm)
    args = list(launch.program.args)
    program.run(launch.program.kind.value, launch.program.target, args, launch.error_file)


def _serve(role: str, sock: socket.socket, nursery: int, warm: str) -> WorkerLaunch | None:
    # What is frozen is not copied by collections; what is still frozen at the end looks like a leak to
    # extension modules, which say so on stderr. Registered first, so that it runs last.
    atexit.register(gc.unfreeze)
    # What is imported stays: looking for garbage in it takes a fifth of the time, and finds next to nothing.
    gc.disable()
    try:
        about = _load(warm)()
    except Exception as error:  # noqa: BLE001 - any failure of foreign imports: told, not judged.
        sock.sendall(encode({"type": "cold", "why": f"{type(error).__name__}: {error}"}))
        return None
    gc.freeze()
    gc.enable()
    if role == SPARE:
        return _park(sock, nursery, warm)
    threads = threading.active_count()
    sock.sendall(encode({"type": "warm", "threads": threads, "about": str(about)}))
    newborn.rename(["taskd", "zygote"])
    return _fork_on_request(sock, nursery, warm)


def _fork_on_request(sock: socket.socket, nursery: int, warm: str) -> WorkerLaunch | None:
    """Fork a parked process for each file descriptor that arrives; None when the nursery hangs up.

    Returns a launch in the forked process only.
    """
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1, 1)
        if not data:
            return None
        for fd in fds:
            between = os.fork()
            if between == 0:
                return _fork_again(sock, socket.socket(fileno=fd), nursery, warm)
            os.close(fd)
            os.waitpid(between, 0)


def _fork_again(control: socket.socket, sock: socket.socket, nursery: int, warm: str) -> WorkerLaunch | None:
    between = os.getpid()
    if os.fork() != 0:
        os._exit(0)
    control.close()
    os.setsid()
    if not newborn.await_adoption(between, nursery, _ADOPTION_S):
        os._exit(0)
    return _park(sock, nursery, warm)


def _park(sock: socket.socket, nursery: int, warm: str) -> WorkerLaunch | None:
    if not newborn.die_with(nursery):
        return None
    newborn.rename(["taskd", "spare"])
    frames = Frames()
    try:
        sock.sendall(encode({"type": "parked", "pid": os.getpid()}))
        _prepare(sock, warm)
        while data := sock.recv(_CHUNK):
            for message in frames.feed(data):
                sock.close()
                return parse_launch(message)
    except OSError:
        pass  # The nursery ended or does not want this spare any more.
    return None


def _prepare(sock: socket.socket, warm: str) -> None:
    """Use the time of waiting: run the steps of ``prepare``, if the module of the warm-up has it."""
    prepare = getattr(sys.modules[warm.partition(":")[0]], "prepare", None)
    if prepare is None or _is_called(sock, _IDLE_S):
        return
    try:
        for about in prepare():
            newborn.rename(["taskd", "spare", f"({about})"])
            if _is_called(sock, 0):
                return
    except Exception as error:  # noqa: BLE001 - a rank that needs the device will say what is wrong with it
        sys.stderr.write(f"a spare could not prepare itself: {type(error).__name__}: {error}\n")


def _is_called(sock: socket.socket, limit_s: float) -> bool:
    return bool(select.select([sock], [], [], limit_s)[0])


def _become(launch: WorkerLaunch, outputs: tuple[int, int]) -> None:
    """Give this process the appearance of one that was just started for a launch."""
    for fd, saved in zip((1, 2), outputs, strict=True):
        os.dup2(saved, fd)
        os.close(saved)
    try:
        newborn.enter(launch)
    except OSError as error:
        newborn.refuse(f"cannot start {launch.program.target}: {error}", newborn.CANNOT_ENTER)
    os.environ.clear()
    os.environ.update(launch.env)
    newborn.rename(program.shown(launch.program.kind.value, launch.program.target, launch.program.args))
    newborn.renew_streams()
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.ORIGINAL_DIR = launch.cwd  # type: ignore[attr-defined]  # Remembered when imported.


def _renew(warm: str) -> None:
    """Seed random generators from the system, or all forks of one process would draw the same numbers.

    What only the module of the warm-up knows, its function ``renew`` does.
    """
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    renew = getattr(sys.modules[warm.partition(":")[0]], "renew", None)
    if renew is not None:
        renew()


def _divert_output(log_fd: int) -> tuple[int, int]:
    """Let what the imports print go to the log; return copies of the streams that workers inherit."""
    saved = os.dup(1), os.dup(2)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    return saved


def _load(name: str) -> Callable[[], object]:
    module, _, attribute = name.partition(":")
    found: Callable[[], object] = getattr(importlib.import_module(module), attribute)
    return found
