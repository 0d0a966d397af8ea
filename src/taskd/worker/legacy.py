"""``init_taskd_worker`` and its two sisters: a worker from a user's training script.

A process that an agent of ours started is told by its environment where to join. One that an msrun or a
torchrun of its own started finds the container's proxy by its default port instead. Where there is neither,
the answer is True and nothing happens: the training must not depend on us. No thread waits for a proxy to
appear; ``start_taskd_worker`` looks once more.

``upper_limit_of_disk_in_mb`` bounds what profiling writes. No signal handler is installed.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taskd.kit.container import DEFAULT_LISTEN_PORT, job_name, page_path, socket_path
from taskd.kit.pages import Page
from taskd.worker.client import Worker, WorkerEnv

INIT = "init_taskd_worker"

log = logging.getLogger("taskd")


class WorkerArgumentError(ValueError):
    """An argument or a variable that makes no sense; the text says what to do."""


@dataclass(slots=True)
class _Joined:
    """What an init has made: the rank's place, and the worker once there is somebody to join."""

    rank: int
    node: int
    disk_limit_mb: int
    worker: Worker | None = None


def parse_node_rank(framework: str, env: Mapping[str, str]) -> int:
    """Compute the rank of this process's node from what the framework's launcher has set."""
    try:
        if framework == "pt":
            return int(env["RANK"]) // int(env["LOCAL_WORLD_SIZE"])
        if framework == "ms":
            return int(env["MS_NODE_RANK"])
    except (KeyError, ValueError, ZeroDivisionError) as error:
        needs = "RANK and LOCAL_WORLD_SIZE" if framework == "pt" else "MS_NODE_RANK"
        raise WorkerArgumentError(
            f"{INIT}: {needs} must be numbers in the environment ({error!r}); call it in a process "
            "that the launcher started"
        ) from error
    raise WorkerArgumentError(f"{INIT}: framework is {framework!r}; give 'pt' or 'ms'")


_joined: _Joined | None = None


def init_taskd_worker(rank_id: int, upper_limit_of_disk_in_mb: int = 5000, framework: str = "pt") -> bool:
    """Join the job from this training process; False, and a line in the log, if an argument is wrong."""
    global _joined  # noqa: PLW0603 - a process has one worker
    try:
        _check("rank_id", rank_id)
        _check("upper_limit_of_disk_in_mb", upper_limit_of_disk_in_mb)
        node = parse_node_rank(framework, os.environ)
    except WorkerArgumentError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is the whole story
        return False
    if _joined is not None:
        log.info("%s: this process has a worker already; nothing was changed", INIT)
        return True
    _joined = _Joined(int(rank_id), node, int(upper_limit_of_disk_in_mb))
    _join(_joined)
    return True


def start_taskd_worker() -> bool:
    """Have the worker work; it joins now if there was nobody to join before."""
    if _joined is None:
        log.error("start_taskd_worker: there is no worker; call %s first and look at its answer", INIT)
        return False
    if _joined.worker is None:
        _join(_joined)
    return True


def destroy_taskd_worker() -> bool:
    """Leave the job; a later init joins again."""
    global _joined  # noqa: PLW0603 - a process has one worker
    if _joined is None:
        log.error("destroy_taskd_worker: there is no worker; call %s first", INIT)
        return False
    if _joined.worker is not None:
        _joined.worker.close()
    _joined = None
    return True


def _check(name: str, value: object) -> None:
    if not isinstance(value, int):
        raise WorkerArgumentError(
            f"{INIT}: {name} is of type {type(value).__name__} ({value!r}); give an int"
        )
    if value < 0:
        raise WorkerArgumentError(f"{INIT}: {name} is {value}; give 0 or more")


def _join(joined: _Joined) -> None:
    try:
        env = WorkerEnv.read(os.environ) or _find_proxy(joined)
        if env is None:
            log.info("no proxy serves this container yet; training goes on without")
            return
        if env.rank != joined.rank:
            log.warning("%s: rank_id is %s, but the launcher says %s", INIT, joined.rank, env.rank)
        joined.worker = Worker(env)
    except (OSError, ValueError) as error:
        log.warning("this process is not watched: %s", error)


def _find_proxy(joined: _Joined) -> WorkerEnv | None:
    """Find the proxy of the container by its default port.

    The page beside its socket is made by the agent, which writes the generation into it. Where there is no
    agent, the worker makes one of its own and nobody reads it.
    """
    where = socket_path(DEFAULT_LISTEN_PORT)
    if not Path(where).exists():
        return None
    path = page_path(where, joined.rank)
    page = Page(path) if Path(path).exists() else Page(path, create_generation=0)
    view = page.read()
    page.close()
    return WorkerEnv(
        job=job_name(os.environ),
        node=str(joined.node),
        rank=joined.rank,
        generation=view.generation if view is not None else 0,
        socket=where,
        page=path,
        fired_dir="",
        faults="",
    )
