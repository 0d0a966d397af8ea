"""Small questions to a job's state, and small changes of it, that the machine's parts share."""

from collections.abc import Mapping
from dataclasses import replace

from taskd.core.incidents import INTERRUPTED, Incident
from taskd.core.jobstate import Effect, Ending, Fault, Job, Node, RecordIncident, Refuse, SendOrder
from taskd.core.launch import NodePlace, Plan
from taskd.core.messages import Finish, NodePhase, Stop, WorkerState, WorkerView
from taskd.core.status import PhaseName
from taskd.core.troubles import TroubleKind

FINISH_ORDER = "finish"


def stop_order(job: Job, why: str) -> Stop:
    """Return the order to stop the current generation."""
    return Stop(f"{job.generation}/stop", job.generation, job.options.stop_grace_s, why)


def finish_order(job: Job, ending: Ending) -> Finish:
    """Return the order to leave."""
    return Finish(FINISH_ORDER, ending.code, ending.reason, ending.report, job.options.stop_grace_s)


def open_incident(job: Job, now: float, stamp: float, fault: Fault) -> tuple[Incident, tuple[Effect, ...]]:
    """Make the incident of a fault, and close the one that it interrupts.

    A peer's connection breaks a moment before its death is reported. If that moment was long and the step is
    being tried again already, the death explains the broken connection: it is one incident, not two.
    """
    report, symptom = fault.report, _is_symptom(job, fault)
    number = job.incidents if symptom else job.incidents + 1
    noticed_at = report.noticed_at if report else fault.noticed_at
    started_at = min(now, noticed_at or now)
    incident = Incident(
        number=number,
        started_at=min(started_at, job.incident.started_at) if symptom and job.incident else started_at,
        stamp=stamp,
        kind=fault.kind,
        what=fault.culprit.what,
        rank=report.rank if report else -1,
        node=fault.culprit.node,
        step=report.step if report else -1,
        generation=job.generation,
        failed_stamp=report.failed_stamp if report else 0.0,
        stack=report.stack if report else "",
    )
    incident = incident.mark(PhaseName.DETECT, now).mark(PhaseName.DECIDE, now)
    if job.incident is None or symptom:
        return incident, ()
    return incident, (RecordIncident(replace(job.incident, outcome=f"{INTERRUPTED} {number}")),)


def _is_symptom(job: Job, fault: Fault) -> bool:
    """Tell whether the open incident is what a death looked like to the others."""
    gathered = job.recovering is not None and job.recovering.regroup is None
    broken = job.incident is not None and job.incident.kind == TroubleKind.NETWORK
    return gathered and broken and fault.kind in ("process", "node", "agent")


def with_node(job: Job, node: Node) -> Job:
    """Return the job with a node changed or added."""
    return replace(job, nodes={**job.nodes, node.key: node})


def is_member(job: Job, key: str) -> bool:
    """Tell whether the current plan gives a node ranks."""
    return job.plan is not None and job.plan.place_of(key) is not None


def is_down(node: Node, generation: int) -> bool:
    """Tell whether nothing of a generation, nor of an older one, runs on the node."""
    if node.phase in (NodePhase.IDLE, NodePhase.FINISHED):
        return True
    return node.phase is NodePhase.STOPPED and node.generation >= generation


def is_quiet(node: Node) -> bool:
    """Tell whether nothing runs on the node, of whatever generation."""
    return node.phase in (NodePhase.IDLE, NodePhase.STOPPED, NodePhase.FINISHED)


def next_generation(job: Job) -> int:
    """Return a generation that nobody has heard of yet, also not a standby."""
    return 1 + max(job.generation, job.reserved)


def find_spare(job: Job, place: NodePlace, taken: set[str], wanted: str = "") -> Node | None:
    """Find a node that nobody uses and that has room for the ranks of a place.

    The one that a control plane has named to the operator too, if it is there. Else those that stand by come
    first, in the order of their names: an operator that gives their pods the places of lost ones goes by the
    same order, and nobody has to tell the other.
    """
    wanted = wanted or job.relief.nodes.get(place.node_rank, "")
    others = {key for rank, key in job.relief.nodes.items() if rank != place.node_rank} - {wanted}
    spares = [
        node
        for key, node in job.nodes.items()
        if node.usable
        and key not in taken
        and key not in others
        and key not in job.relief.shunned
        and is_quiet(node)
        and node.announce.local_world >= place.local_world
    ]
    return min(spares, key=lambda node: (node.key != wanted, *_turn(node)), default=None)


def _turn(node: Node) -> tuple[bool, int, str, int]:
    name = node.key if node.announce.spare else ""
    return not node.announce.spare, len(name), name, node.order_of_joining


def node_label(job: Job, key: str) -> str:
    """Name a node for a person: by its rank where it has one."""
    place = job.plan.place_of(key) if job.plan else None
    return str(place.node_rank) if place else key


def member_views(job: Job) -> list[WorkerView]:
    """Return the workers of the current plan, as far as they are known."""
    if job.plan is None:
        return [view for node in job.nodes.values() for view in node.workers.values()]
    nodes = [job.nodes.get(place.node) for place in job.plan.places]
    return [
        view
        for node in nodes
        if node is not None and node.generation == job.plan.generation
        for view in node.workers.values()
    ]


def refuse_stale(node: str, generation: int, job: Job) -> Refuse:
    """Refuse what belongs to another generation."""
    return Refuse(node, f"report of generation {generation}; the job is at {job.generation}")


def newer_view(old: WorkerView | None, new: WorkerView) -> WorkerView:
    """Keep what is already known of the same process: its exit may be reported before its start."""
    return old if old is not None and old.pid == new.pid else new


def stopped_view(view: WorkerView) -> WorkerView:
    """Return a worker that was alive as stopped."""
    return replace(view, state=WorkerState.STOPPED) if view.state.alive else view


def note_progress(
    job: Job, key: str, steps: Mapping[int, int], joined: tuple[int, ...], ready: tuple[int, ...] = ()
) -> Job:
    """Note how far ranks of a node are, in one go: a large job hears this thousands of times a second."""
    node = job.nodes[key]
    changed: dict[int, WorkerView] = {}
    for rank, at_step in steps.items():
        view = node.workers.get(rank)
        if view is None or not view.state.alive:
            continue
        state = WorkerState.JOINED if rank in joined or at_step >= 0 else view.state
        keeps = view.ready or rank in ready
        if (state, at_step, keeps) != (view.state, view.step, view.ready):
            at = max(at_step, view.step)
            changed[rank] = WorkerView(rank, view.local_rank, view.pid, state, at, view.exit, view.log, keeps)
    if not changed:
        return job
    return replace(
        job,
        nodes={**job.nodes, key: replace(node, workers={**node.workers, **changed})},
        joins=job.joins or any(view.state is WorkerState.JOINED for view in changed.values()),
        steps=job.steps or any(view.step >= 0 for view in changed.values()),
    )


def choose_nodes(job: Job) -> list[Node]:
    """Choose the nodes of the next plan, in the order of their ranks."""
    usable = [node for node in job.nodes.values() if node.usable]
    before = {place.node: place.node_rank for place in job.plan.places} if job.plan else {}

    def precedence(node: Node) -> tuple[int, int]:
        wanted = node.announce.wants_rank
        last = job.options.max_nodes + node.announce.spare
        rank = wanted if wanted >= 0 else before.get(node.key, last)
        return rank, node.order_of_joining

    return sorted(usable, key=precedence)[: job.options.max_nodes]


def newest_plan(job: Job) -> Plan | None:
    """Return the latest plan that a usable node announced."""
    plans = [
        node.announce.plan for node in job.nodes.values() if node.usable and node.announce.plan is not None
    ]
    return max(plans, key=lambda each: (each.generation, each.moves), default=None)


def stop_leftovers(job: Job, node: Node) -> tuple[Effect, ...]:
    """Have a node that was out of reach stop what it still runs; that was given up and gets no grace."""
    if is_quiet(node):
        return ()
    why = f"the job went on without this node; it is at generation {job.generation}"
    return (SendOrder(node.key, Stop(f"{node.generation}/stop", node.generation, 0.0, why)),)
