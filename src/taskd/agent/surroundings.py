"""What the training processes of a node share: their environment, their warm-up, and their parent.

Known before anything else is: the launcher needs it for a nursery that it sends ahead, so this module imports
next to nothing.
"""

import socket
import subprocess
import sys
from collections.abc import Mapping

from taskd.core.hccl import watchdogs_of_taskd
from taskd.core.launch import DEFAULT_STRATEGIES, LaunchSpec
from taskd.core.programs import ProgramKind

WARM_TORCH = "taskd.agent.torch.warm:warm"
NURSERY_VARIABLE = "TASKD_ROLE_NURSERY"
"""Tells an agent of the nursery that was sent ahead: the number of its socket, and its process."""


def warm_up(spec: LaunchSpec, *, spare: bool) -> str:
    """Return the function that prepares processes of a node, empty if none are to be prepared."""
    in_python = spec.program.kind is not ProgramKind.COMMAND
    return WARM_TORCH if in_python and (spec.spares > 0 or spare) else ""


def base_env(spec: LaunchSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what all workers of a node have in common.

    A warm process was started with it too: libraries read some variables when they are loaded, so a warm
    process whose variables differ is of no use.
    """
    env = {key: value for key, value in inherited.items() if not key.startswith("TASKD_ROLE")}
    strategies = spec.recover_strategies or DEFAULT_STRATEGIES
    # For a script that joins; any other one keeps torchrun's setting.
    env["TASKD_WATCHDOGS"] = ",".join(watchdogs_of_taskd(inherited, strategies))
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if spec.local_world > 1:
        # torchrun's rule: many processes on one node would each take every core.
        env.setdefault("OMP_NUM_THREADS", "1")
    return env


def start_nursery(env: Mapping[str, str], *warm: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start the parent of a node's training processes; returns it with the agent's end of its socket.

    A warm-up begins at once where one is named.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "taskd.agent.nursery_main", str(theirs.fileno()), *warm],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=env,
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours
