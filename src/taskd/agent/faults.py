"""Carry out an injected fault on this node."""

import os
import signal

from taskd.core.launch import FaultKind
from taskd.core.messages import Inject


def do_fault(order: Inject, pid: int, proxy_pid: int) -> tuple[bool, str]:
    """Do what can be done at once; returns whether it will happen, and what."""
    if order.kind not in (FaultKind.KILL, FaultKind.HANG):
        return False, f"an agent can kill or hang, not {order.kind}"
    sig = signal.SIGSTOP if order.kind is FaultKind.HANG else signal.SIGKILL
    if order.whole_node:
        possible = order.kind is FaultKind.KILL
        return possible, "the node is lost" if possible else "a node can only be killed"
    if order.role == "agent":
        return True, f"the agent gets {sig.name}"
    victim = proxy_pid if order.role == "proxy" else pid
    if not victim:
        return False, f"there is no process of {order.role or f'rank {order.rank}'} now"
    try:
        os.kill(victim, sig)
    except OSError as error:
        return False, f"process {victim} cannot be reached: {error}"
    return True, f"{sig.name} was sent to process {victim}"
