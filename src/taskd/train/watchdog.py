"""Turn the collective library's own watchdog off in a process that is to live through a failed collective.

It is done here, and not in the environment that all workers get: a script that does not join must end with
its collective, as under torchrun, so that it can be restarted. The libraries read the variable when a group
is made, and recovery makes the group.
"""

from collections.abc import MutableMapping

from taskd.core.hccl import WATCHDOG_OFF

VARIABLE = "TASKD_WATCHDOGS"


def turn_watchdogs_off(env: MutableMapping[str, str]) -> None:
    """Turn off the watchdogs that the agent says are not the user's."""
    for name in filter(None, env.get(VARIABLE, "").split(",")):
        env[name] = WATCHDOG_OFF
