"""The dump: where there is no way on from memory, the survivors write what they have to disk.

Like a recovery it raises the generation over the living, so that all come out of their collectives and say
where they stand. But nobody is replaced and no group is formed: one holder of each part of the state writes
it, and then the job goes where it would have gone without the dump, to a restart or to its end.
"""

from dataclasses import replace

from taskd.core.incidents import Incident
from taskd.core.jobread import is_member, next_generation, open_incident, with_node
from taskd.core.jobstate import (
    Culprit,
    Effect,
    Ending,
    Fault,
    Job,
    RecordIncident,
    Recovering,
    Refuse,
    Saving,
    SendOrder,
    SendWorkers,
)
from taskd.core.launch import DUMP
from taskd.core.messages import Recover, Saved, Standing, WorkerView
from taskd.core.regroup import decide_save
from taskd.core.status import JobPhase, PhaseName

SAVE_LIMIT_S = 600.0
MAX_ROUNDS = 3
WRITTEN = " was written to "

Outcome = tuple[Job, tuple[Effect, ...]]


def can_save(job: Job) -> bool:
    """Tell whether there is anything to write, and whether that is wanted."""
    if DUMP not in job.options.strategies or job.plan is None or job.refused:
        return False
    if job.phase not in (JobPhase.RUNNING, JobPhase.RECOVERING):
        return False
    living = _living(job)
    return bool(living) and all(view.ready for view in living)


def begin_saving(job: Job, now: float, stamp: float, then: Ending | Fault) -> Outcome:
    """Have the living come out and say where they stand. ``can_save`` must have been true."""
    if job.plan is None:
        return job, ()
    living = _living(job)
    leader = min(view.rank for view in living)
    fault = then if isinstance(then, Fault) else Fault("stop", Culprit("", then.reason, then.code))
    what, why_not = fault.culprit.what, fault.culprit.why_restart
    because = f" ({why_not})" if why_not else ""
    plan = replace(job.plan, generation=next_generation(job))
    incident, closed = open_incident(job, now, stamp, fault)
    reason = f"{what}{because}; the living write their state to disk"
    incident = replace(incident, strategy=DUMP, reason=reason)
    effects: list[Effect] = [*closed]
    order = Recover(f"{plan.generation}/save", plan, (), leader, what)
    for place in plan.places:
        node = job.nodes.get(place.node)
        if node is not None and node.usable:
            job = with_node(job, replace(node, generation=plan.generation))
            effects.append(SendOrder(place.node, order))
    job = replace(
        job,
        phase=JobPhase.SAVING,
        reason=incident.reason,
        since=now,
        generation=plan.generation,
        plan=plan,
        incident=incident,
        incidents=incident.number,
        recovering=Recovering(order=order),
        saving=Saving(
            frozenset(view.rank for view in living), then, job.saving.rounds + 1 if job.saving else 1
        ),
    )
    return job, (*effects, RecordIncident(incident))


def can_save_again(job: Job) -> bool:
    """Tell whether the rest of the living should try it once more, after one of them died over it."""
    return job.saving is not None and job.saving.rounds < MAX_ROUNDS and bool(_living(job))


def take_standing_to_save(
    job: Job, now: float, node: str, standing: Standing
) -> tuple[Job, tuple[Effect, ...], str]:
    """Note where a worker stands; when all have said so, tell them what to write. Third: why it fails."""
    saving, recovering, plan = job.saving, job.recovering, job.plan
    if saving is None or recovering is None or plan is None or not is_member(job, node):
        return job, (Refuse(node, "nothing is being saved"),), ""
    if standing.generation != job.generation or standing.rank not in saving.ranks:
        return job, (Refuse(node, f"standing of generation {standing.generation}"),), ""
    if standing.rank in recovering.standings and saving.target >= 0:
        save = decide_save(recovering.standings, plan.world_size)
        return job, () if isinstance(save, str) else (SendWorkers(node, save),), ""
    standings = {**recovering.standings, standing.rank: standing}
    job = replace(job, recovering=replace(recovering, standings=standings), since=now)
    if not saving.ranks <= set(standings):
        return job, (), ""
    save = decide_save(standings, plan.world_size)
    if isinstance(save, str):
        return job, (), save
    incident = job.incident.mark(PhaseName.RELEASE, now) if job.incident else None
    job = replace(job, incident=incident, saving=replace(saving, target=save.target))
    return job, tuple(SendWorkers(place.node, save) for place in plan.places), ""


def take_saved(job: Job, now: float, saved: Saved) -> tuple[Job, tuple[Effect, ...], bool]:
    """Note that a worker has written its part; True when all is on disk, or it cannot be."""
    saving = job.saving
    if saving is None or saved.generation != job.generation:
        return job, (), False
    if not saved.ok:
        job, effects = close_saving(job, now, f"the dump failed: rank {saved.rank}: {saved.detail}")
        return job, effects, True
    saving = replace(saving, saved={**saving.saved, saved.rank: saved.detail})
    job = replace(job, saving=saving, since=now)
    if not saving.ranks <= set(saving.saved):
        return job, (), False
    where = next((each for each in saving.saved.values() if each), "")
    job, effects = close_saving(job, now, f"step {saving.target}{WRITTEN}{where}")
    return job, effects, True


def close_saving(job: Job, now: float, outcome: str) -> Outcome:
    """Put the dump into the record; what comes then is the caller's to do."""
    incident = job.incident
    job = replace(job, phase=JobPhase.RUNNING, recovering=None, incident=None, since=now)
    if incident is None:
        return job, ()
    return job, (RecordIncident(replace(incident.mark(PhaseName.SAVE, now), outcome=outcome)),)


def is_saved(incident: Incident) -> bool:
    """Tell whether an incident ended with the state on disk."""
    return incident.strategy == DUMP and WRITTEN in incident.outcome


def _living(job: Job) -> list[WorkerView]:
    found: list[WorkerView] = []
    for place in job.plan.places if job.plan else ():
        node = job.nodes.get(place.node)
        if node is not None and node.usable:
            views = node.workers.items()
            found.extend(view for rank, view in views if rank in place.ranks and view.state.alive)
    return found
