"""The job as a person sees it, made from the machine's state."""

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.core.jobstate import Job
from taskd.core.status import JobStatus, NodeStatus, RankStatus


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the machine does not know, but a person wants to see."""

    job: str
    manager_pid: int
    manager_addr: str
    started_stamp: float
    stamp: float
    connected: frozenset[str]
    proxy_pids: Mapping[str, int]
    paused: frozenset[int]
    last_fault: str


def make_status(job: Job, around: Surroundings) -> JobStatus:
    """Make the status of a job."""
    ranks_of = {place.node: place.node_rank for place in job.plan.places} if job.plan else {}
    nodes = tuple(
        NodeStatus(
            node=key,
            node_rank=ranks_of.get(key, -1),
            host=node.announce.host,
            agent_pid=node.announce.pid,
            proxy_pid=around.proxy_pids.get(key, 0),
            state=f"lost: {node.lost}" if node.lost else node.phase.value,
            connected=key in around.connected,
            faults=job.budget.used.get(key, 0),
        )
        for key, node in sorted(job.nodes.items(), key=lambda item: ranks_of.get(item[0], -1))
    )
    ranks = tuple(
        RankStatus(
            rank=view.rank,
            local_rank=view.local_rank,
            node=key,
            node_rank=ranks_of.get(key, -1),
            pid=view.pid,
            state="paused" if view.rank in around.paused and view.state.alive else view.state.value,
            step=view.step,
            log=view.log,
        )
        for key, node in job.nodes.items()
        if key in ranks_of
        for view in node.workers.values()
    )
    return JobStatus(
        job=around.job,
        phase=job.phase,
        reason=job.reason,
        generation=job.generation,
        restarts=job.restarts,
        max_restarts=job.options.max_restarts,
        world_size=job.plan.world_size if job.plan else 0,
        manager_pid=around.manager_pid,
        manager_addr=around.manager_addr,
        started_stamp=around.started_stamp,
        stamp=around.stamp,
        nodes=nodes,
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        last_fault=around.last_fault,
        exit_code=job.ending.code if job.ending else None,
    )
