"""The first cause of a failure, in words: which pod, on which node, which container, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from taskd.core.acjob.seen import PodSeen

SIGNALS: Final = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
                  9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM"}  # fmt: skip
RETRYABLE_FROM: Final = 128


def first(pods: Iterable[PodSeen]) -> PodSeen | None:
    """The pod that failed first; peers usually follow it, and their ends explain nothing."""
    return min(pods, key=lambda pod: (_ended_at(pod) or "9", pod.name), default=None)


def _ended_at(pod: PodSeen) -> str:
    ended = pod.main_end()
    return ended.at if ended else ""


def describe(pod: PodSeen, kind: str, now: str) -> dict[str, Any]:
    """`status.lastFault` for a pod that failed."""
    ended = pod.main_end()
    fault: dict[str, Any] = {"type": kind, "pod": pod.name, "time": now}
    if pod.node:
        fault["node"] = pod.node
    if ended is not None:
        fault |= {"container": ended.container, "exitCode": ended.exit_code}
        signal = ended.signal or max(0, ended.exit_code - RETRYABLE_FROM)
        if signal:
            fault["signal"] = signal
        if ended.at:
            fault["time"] = ended.at
    reason = (ended.reason if ended else "") or pod.reason
    message = (ended.message if ended else "") or pod.message
    if reason:
        fault["reason"] = reason
    if message:
        fault["message"] = message[-1024:]
    fault["summary"] = _summary(fault)
    return fault


def lost(pod_name: str, kind: str, node: str, now: str) -> dict[str, Any]:
    """`status.lastFault` for a pod that is gone, without a word of how it ended."""
    fault: dict[str, Any] = {"type": kind, "pod": pod_name, "time": now}
    if node:
        fault["node"] = node
    fault["summary"] = f"pod {pod_name} is gone" + (f", node {node} is lost" if node else "")
    return fault


def retryable(pod: PodSeen) -> bool:
    """Whether the exit code says that another try may help: a signal, or nothing is known."""
    ended = pod.main_end()
    return ended is None or ended.exit_code >= RETRYABLE_FROM


def _summary(fault: dict[str, Any]) -> str:
    how = ""
    if fault.get("reason") == "OOMKilled":
        how = "ran out of memory"
    elif "signal" in fault:
        how = f"was ended by {SIGNALS.get(fault['signal'], fault['signal'])}"
    elif "exitCode" in fault:
        how = f"exited with {fault['exitCode']}"
    elif "reason" in fault:
        how = f"failed: {fault['reason']}"
    where = f" on {fault['node']}" if "node" in fault else ""
    who = f"container {fault['container']} of pod" if "container" in fault else "pod"
    return f"{who} {fault['pod']}{where} {how or 'failed'}"
