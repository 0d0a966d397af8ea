"""The hot switch: ranks get new processes, here or on a spare node, while their old ones go on training.

Three moments. *Prepare*: standbys of the ranks are made in a generation that is reserved for them; they run
their script as far as its loop and stand there. *Release*: when all of them stand, the generation is raised
gently over the job; everybody finishes its step and stands at the top of the next one, and those who leave
bring what is theirs alone. *Part*: when all stand, one decision makes the standbys the ranks.

Up to that decision the old plan holds. A fault before it takes its usual course, with a later generation, and
the switch is off. If only the standbys fail after the release, all old ranks go on as they are.
"""

from dataclasses import replace

from taskd.core.exits import ExitCode
from taskd.core.incidents import SWITCH, Incident
from taskd.core.jobread import find_spare, is_member, member_views, next_generation, with_node
from taskd.core.jobstate import (
    Culprit,
    Effect,
    Job,
    RecordIncident,
    Recovering,
    Refuse,
    SendOrder,
    SendWorkers,
    Switch,
    SwitchRequested,
)
from taskd.core.launch import NodePlace, Plan
from taskd.core.messages import (
    Dismiss,
    NodePhase,
    Part,
    Prepare,
    Prepared,
    Regroup,
    Release,
    Standing,
    WorkerState,
)
from taskd.core.regroup import decide_regroup
from taskd.core.status import JobPhase, PhaseName

HOT_SWITCH = "hot-switch"
PREPARE_LIMIT_S = 900.0
RELEASE_LIMIT_S = 900.0

Outcome = tuple[Job, tuple[Effect, ...]]


def why_not(job: Job, request: SwitchRequested) -> str:
    """Say why a switch cannot begin now; empty if it can."""
    found = _find_places(job, request)
    return found if isinstance(found, str) else ""


def begin_switch(job: Job, request: SwitchRequested) -> Outcome:
    """Have the standbys made; the training goes on."""
    found = _find_places(job, request)
    if isinstance(found, str) or job.plan is None:
        return job, (Refuse("", str(found)),)
    old, new, ranks = found
    generation = next_generation(job)
    places = tuple(new if place is old else place for place in job.plan.places)
    plan = replace(job.plan, generation=generation, places=places, moves=job.plan.moves + 1)
    target = job.nodes[new.node]
    if 0 in ranks and new.node != old.node:
        plan = replace(plan, master_addr=target.announce.addr)
    names = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    where = "a new process" if new.node == old.node else f"node {new.node} (as node {new.node_rank})"
    what = f"{names} of node {old.node_rank} moved to {where}, as asked"
    number = job.incidents + 1
    incident = Incident(
        number=number,
        started_at=request.now,
        stamp=request.stamp,
        kind=SWITCH,
        what=what,
        rank=ranks[0] if len(ranks) == 1 else -1,
        node=old.node,
        step=-1,
        generation=job.generation,
        strategy=HOT_SWITCH,
        reason=f"{what}; the old processes train until the new ones are built, all others keep theirs",
    )
    switch = Switch(plan, ranks, new.node, target.incarnation, job.generation, request.now, incident)
    order = Prepare(f"{generation}/prepare", plan, ranks, what)
    job = replace(job, switch=switch, reserved=generation, incidents=number)
    return job, (SendOrder(new.node, order), RecordIncident(incident))


def _find_places(job: Job, request: SwitchRequested) -> tuple[NodePlace, NodePlace, tuple[int, ...]] | str:
    """Return the place that is left, the one that is taken, and the ranks that go; or why not."""
    plan = job.plan
    if plan is None or job.phase is not JobPhase.RUNNING or job.incident is not None:
        return f"the job is {job.phase.value}; ranks can be moved while it is running and nothing is wrong"
    if job.switch is not None:
        return f"a switch is under way already: {job.switch.incident.what}"
    views = member_views(job)
    if len(views) < plan.world_size or not all(view.ready and view.state.alive for view in views):
        return "not every rank keeps its state (taskd.train: register and steps), so none can be moved"
    place: NodePlace | None
    ranks: tuple[int, ...]
    if request.rank >= 0:
        place = plan.place_of_rank(request.rank)
        if place is None:
            return f"there is no rank {request.rank}; the ranks are 0 to {plan.world_size - 1}"
        ranks, new = (request.rank,), place
    else:
        place = next((each for each in plan.places if each.node_rank == request.node_rank), None)
        if place is None:
            return f"there is no node {request.node_rank}; the nodes are 0 to {len(plan.places) - 1}"
        spare = find_spare(job, place, {each.node for each in plan.places}, request.spare)
        if spare is None:
            return (
                f"there is no spare node for the {place.local_world} ranks of node {place.node_rank}; "
                "start the job with --spare-nodes 1, or move single ranks with --rank"
            )
        ranks, new = tuple(place.ranks), replace(place, node=spare.key)
    if len(ranks) == plan.world_size:
        return "all ranks would leave at once, and nobody would be left who has the state"
    return place, new, ranks


# --- what is heard ---------------------------------------------------------------------------------------


def take_prepared(job: Job, now: float, node: str, prepared: Prepared) -> Outcome:
    """The standbys exist, or one of them failed."""
    switch = job.switch
    if switch is None or prepared.generation != switch.plan.generation or node != switch.target:
        return job, (Refuse(node, f"standbys of generation {prepared.generation}; no switch wants them"),)
    if prepared.error:
        return give_up(job, now, prepared.error)
    workers = {view.rank: view for view in prepared.workers}
    return _go_on(replace(job, switch=replace(switch, workers=workers)), now)


def concerns(job: Job, standing: Standing) -> bool:
    """Tell whether somebody stands for the sake of the switch under way."""
    return job.switch is not None and standing.generation == job.switch.plan.generation


def take_standing(job: Job, now: float, node: str, standing: Standing) -> Outcome:
    """Note that a standby is built, or that an old rank has come to the top of its next step."""
    switch = job.switch
    if switch is None or job.plan is None:
        return job, ()
    rank = standing.rank
    if standing.birth == switch.plan.generation:
        if node != switch.target or rank not in switch.ranks:
            return job, (Refuse(node, f"a standby of rank {rank} that nobody ordered"),)
        switch = replace(switch, built={**switch.built, rank: standing})
    else:
        if not switch.released or not is_member(job, node):
            return job, (Refuse(node, f"standing of generation {standing.generation} before its time"),)
        if not switch.standings:
            switch = replace(switch, incident=replace(switch.incident, started_at=now, step=standing.step))
        switch = replace(switch, standings={**switch.standings, rank: standing})
    return _go_on(replace(job, switch=switch), now)


def review(job: Job, now: float) -> Outcome:
    """Look at a job after something happened to it: a switch that was overtaken is off."""
    switch = job.switch
    if switch is None:
        return job, ()
    expected = switch.plan.generation if switch.released else switch.base
    if job.phase is not JobPhase.RUNNING or job.generation != expected:
        return _abandon(job, switch, job.reason)
    target = job.nodes[switch.target]
    if not target.usable or target.incarnation != switch.incarnation:
        return give_up(job, now, f"node {target.key} was lost: {target.lost}" if target.lost else "lost")
    if not switch.released and now - switch.since >= PREPARE_LIMIT_S:
        return give_up(job, now, f"the new processes were not built within {PREPARE_LIMIT_S:g} s")
    return job, ()


def overdue(job: Job, now: float) -> Culprit | None:
    """Say that the old ranks do not come to the top of a step although they were told."""
    switch = job.switch
    if switch is None or not switch.released or now - switch.since < RELEASE_LIMIT_S:
        return None
    return Culprit("", f"the ranks did not come together within {RELEASE_LIMIT_S:g} s", ExitCode.FAILED)


def give_up(job: Job, now: float, why: str) -> Outcome:
    """Call the switch off. Ranks that were released already come together once more, as they are."""
    switch = job.switch
    if switch is None or switch.off:
        return job, ()
    if not switch.released:
        return _abandon(job, switch, why)
    return _go_on(replace(job, switch=replace(switch, off=why)), now)


def _abandon(job: Job, switch: Switch, why: str) -> Outcome:
    job = replace(job, switch=None)
    return job, (*_dismiss(job, switch, why), RecordIncident(_cancelled(switch, why)))


def _dismiss(job: Job, switch: Switch, why: str) -> tuple[Effect, ...]:
    generation = switch.plan.generation
    node = job.nodes.get(switch.target)
    if node is None or not node.usable:
        return ()
    return (SendOrder(switch.target, Dismiss(f"{generation}/dismiss", generation, why)),)


def _cancelled(switch: Switch, why: str) -> Incident:
    return replace(switch.incident, outcome=f"cancelled: {why}")


# --- the three moments -----------------------------------------------------------------------------------


def _go_on(job: Job, now: float) -> Outcome:
    """Do what can be done next."""
    switch = job.switch
    if switch is None or job.plan is None:
        return job, ()
    if not switch.released:
        ready = set(switch.ranks) <= set(switch.built) and set(switch.ranks) <= set(switch.workers)
        return _release(job, job.plan, switch, now) if ready else (job, ())
    if len(switch.standings) < job.plan.world_size:
        return job, ()
    return _part(job, switch, now)


def _release(job: Job, plan: Plan, switch: Switch, now: float) -> Outcome:
    """Raise the generation over the old ranks; their places do not change yet."""
    plan = replace(plan, generation=switch.plan.generation)
    leader = min(rank for rank in range(plan.world_size) if rank not in switch.ranks)
    order = Release(f"{plan.generation}/release", plan, leader, switch.ranks, switch.incident.what)
    for place in plan.places:
        job = with_node(job, replace(job.nodes[place.node], generation=plan.generation))
    switch = replace(switch, released=True, since=now)
    job = replace(job, generation=plan.generation, plan=plan, switch=switch)
    return job, tuple(SendOrder(place.node, order) for place in plan.places)


def _part(job: Job, switch: Switch, now: float) -> Outcome:
    """All stand. Decide who is who from here on."""
    regroup = _decide(switch)
    if isinstance(regroup, str):
        return _stay(job, switch, now, regroup)
    plan, old = switch.plan, job.plan
    slim = replace(regroup, partings={})
    order = Part(f"{plan.generation}/part", plan, switch.ranks)
    places = (*plan.places, *(old.places if old else ()))
    told = list(dict.fromkeys(place.node for place in places))
    effects: list[Effect] = []
    for key in told:
        node = job.nodes[key]
        place = plan.place_of(key)
        if key == switch.target and place is not None:
            workers = {rank: view for rank, view in node.workers.items() if rank in place.ranks}
            new = {rank: replace(view, state=WorkerState.JOINED) for rank, view in switch.workers.items()}
            workers = {**workers, **new}
            job = with_node(
                job, replace(node, phase=NodePhase.RUNNING, generation=plan.generation, workers=workers)
            )
        elif place is None:
            job = with_node(job, replace(node, phase=NodePhase.STOPPING))
        else:
            continue
        effects.append(SendOrder(key, order))
    effects.extend(SendWorkers(key, regroup if key == switch.target else slim) for key in told)
    standings = {**switch.standings, **switch.built}
    job = replace(
        job,
        phase=JobPhase.RECOVERING,
        reason=switch.incident.what,
        since=now,
        plan=plan,
        switch=None,
        incident=switch.incident.mark(PhaseName.RELEASE, now),
        recovering=Recovering(standings=standings, regroup=regroup),
    )
    return job, tuple(effects)


def _stay(job: Job, switch: Switch, now: float, why: str) -> Outcome:
    """Let all old ranks go on as they are."""
    regroup = decide_regroup(switch.standings)
    job = replace(job, switch=None)
    effects = (*_dismiss(job, switch, why), RecordIncident(_cancelled(switch, why)))
    places = job.plan.places if job.plan else ()
    if isinstance(regroup, str):
        # Nobody can go on from here; the limit of a recovery ends it.
        return replace(job, phase=JobPhase.RECOVERING, since=now, recovering=Recovering()), effects
    job = replace(
        job,
        phase=JobPhase.RECOVERING,
        reason=f"the switch is off: {why}",
        since=now,
        recovering=Recovering(standings=switch.standings, regroup=regroup),
    )
    return job, (*effects, *(SendWorkers(place.node, regroup) for place in places))


def _decide(switch: Switch) -> Regroup | str:
    if switch.off:
        return switch.off
    leaving = {rank: switch.standings[rank] for rank in switch.ranks}
    staying = {rank: each for rank, each in switch.standings.items() if rank not in leaving}
    hurt = [rank for rank, standing in leaving.items() if not standing.leaving]
    if hurt:
        return f"a fault brought rank {hurt[0]} out of its last step"
    # A snapshot that an old process has finished since is there for its successor on the same node.
    built = {
        rank: replace(standing, shards=leaving[rank].shards, snapshots=_readable(switch, leaving[rank]))
        for rank, standing in switch.built.items()
    }
    regroup = decide_regroup({**staying, **built})
    if isinstance(regroup, str):
        return regroup
    if any(standing.step != regroup.target for standing in leaving.values()):
        return "the ranks do not stand at the same step"
    partings = {rank: standing.own for rank, standing in leaving.items()}
    return replace(regroup, parted=switch.ranks, partings=partings)


def _readable(switch: Switch, leaver: Standing) -> tuple[tuple[int, int], ...]:
    return leaver.snapshots if switch.incident.node == switch.target else ()
