"""What every role's process does first and last."""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

CONFIG_VARIABLE = "TASKD_ROLE_CONFIG"
PR_SET_PDEATHSIG = 1

C = TypeVar("C")


def read_config(kind: type[C]) -> C:
    """Read the role's configuration and take it out of the environment, so that no child sees it."""
    raw = os.environ.pop(CONFIG_VARIABLE, "")
    try:
        return msgspec.json.decode(raw.encode(), type=kind)
    except msgspec.MsgspecError as error:
        sys.stderr.write(f"taskd: {CONFIG_VARIABLE} is not a {kind.__name__}: {error}\n")
        raise SystemExit(2) from error


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, also when nothing of ours can run any more."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def run_role(main: Callable[[], Awaitable[int]]) -> None:
    """Run a role to its end. Ctrl-C reaches the launcher, which ends the roles in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parent = os.environ.pop("TASKD_PARENT_PID", "")
    if parent.isdigit():
        die_with_parent(int(parent))

    async def run() -> int:
        return await main()

    raise SystemExit(asyncio.run(run()))
