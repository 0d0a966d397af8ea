"""When a manager.py may begin that runs in a pod which stands by for rank 0's.

The guides start manager.py wherever the rank is 0. The new pod of a hot switch has that rank too, while the
manager of the job is still in the pod that it relieves: a second one would speak to the control plane for a
job that it does not have. When the old pod is gone, though, there must be a manager here, because the
leader's Service leads here and every launcher looks there. So it waits for its turn.

The old manager is looked for behind the leader's Service, which leads to both pods while both are there, and
here nobody listens yet: half of all knocks are refused then. Only a long row of them says that it is gone.
"""

import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

from taskd.core.hccl import VariableError
from taskd.core.podplace import leader_host, read_pod

MISSES: Final = 20
PAUSE_S: Final = 0.25
KNOCK_S: Final = 1.0
HOLD_S: Final = 0.5

log = logging.getLogger("taskd")


def await_turn(
    env: Mapping[str, str],
    hostname: str,
    port: int,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return at once in a pod that has its place; in one that stands by, when nobody manages elsewhere.

    That may be never: a switch that is called off ends the pod, and this with it.
    """
    try:
        facts = read_pod(env, hostname, counted=True)
    except VariableError:
        return  # the launcher beside it says so
    if facts is None or not facts.place.spare:
        return
    host = leader_host(env)
    log.warning("this pod stands by for rank 0: its manager begins when that of %s:%s is gone", host, port)
    misses = 0
    while misses < MISSES:
        misses = misses + 1 if _is_missed(host, port) else 0
        pause(PAUSE_S)
    log.warning("nobody manages at %s:%s any more: the manager begins here", host, port)


def _is_missed(host: str, port: int) -> bool:
    """Tell whether nobody is there.

    What stands in between (a mesh, a proxy) may take a connection first and drop it when it finds nobody: a
    manager says something, or waits for the caller to.
    """
    try:
        line = socket.create_connection((host, port), timeout=KNOCK_S)
    except socket.gaierror:
        return False  # it says nothing about the manager
    except OSError:
        return True
    with line:
        line.settimeout(HOLD_S)
        try:
            return not line.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
