"""One decision about a job: what was seen goes in, what to do and what to say comes out.

`decide` is asked again after everything that it asked for was done, until it asks for nothing; only then is
the status stored, once. Where an action does away with the evidence of something that must be counted (a
failed pod is deleted), the status goes first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from taskd.core.acjob import conditions, names, restarts, switching, validation
from taskd.core.acjob import job as jobs
from taskd.core.acjob import status as statuses
from taskd.core.acjob.actions import (
    Action,
    AnnotatePod,
    CreateBackup,
    CreatePods,
    Decision,
    DeletePod,
    DeletePodGroup,
    SyncExtras,
    SyncPodGroup,
    SyncService,
)
from taskd.core.acjob.conditions import Condition
from taskd.core.acjob.finishing import clean_up, deadline_at, has_succeeded
from taskd.core.acjob.job import Job
from taskd.core.acjob.seen import FAILED, PENDING, RUNNING, SUCCEEDED, Snapshot, roster
from taskd.core.acjob.status import Status, stamp

COUNTED: Final = {RUNNING: "active", SUCCEEDED: "succeeded", FAILED: "failed", PENDING: "pending"}
WAITING_PHASES: Final = ("", "Pending")


def decide(seen: Snapshot, now: float) -> Decision:
    """What follows from what was seen."""
    status = statuses.read(seen.raw)
    metadata = jobs.mapping(seen.raw.get("metadata"))
    if metadata.get("deletionTimestamp"):
        return Decision(status)
    if conditions.finished(status.conditions):
        # Neither what a job asks for nor what its queue says matters any more once it has ended.
        return clean_up(seen.job or jobs.read(seen.raw), seen, status, now)
    status = replace(status, observed_generation=int(metadata.get("generation", 0)))
    if not status.conditions:
        # Whatever the first news is, the job was created: who waits for that condition need not be quick.
        status = _tell(status, _created(f"{metadata.get('namespace')}/{metadata.get('name')}"), now)
    problems = seen.problems
    if problems is None or seen.missing_queue is not None:
        problems = validation.validate(seen.raw, missing_queue=seen.missing_queue)
    if problems:
        told = Condition(names.FAILED, names.JOB_INVALID, validation.summary(problems))
        return Decision(_tell(status, told, now))
    return _Course(seen.job or jobs.read(seen.raw), seen, status, now).run()


def _tell(status: Status, news: Condition, now: float) -> Status:
    return replace(status, conditions=conditions.tell(status.conditions, news, stamp(now)))


def _created(key: str) -> Condition:
    return Condition(names.CREATED, names.JOB_CREATED, f"Job {key} is created, its pods are starting.")


class _Course:
    """The way of one decision about a valid job that has not ended."""

    def __init__(self, job: Job, seen: Snapshot, status: Status, now: float) -> None:
        self.job = job
        self.seen = seen
        self.now = now
        self.found = roster(job, seen.pods)
        self.requests = restarts.requests_of(seen.raw)
        known = {str(request.get("id")) for request in self.requests}
        self.status = replace(
            status,
            strategy=",".join(job.strategies()),
            handled={name: answer for name, answer in status.handled.items() if name in known},
            leader_ip=status.leader_ip or (seen.service.ip if seen.service else ""),
        )
        missed = restarts.missed(job, self.found, self.status, seen.departed, stamp(now))
        if missed is not None:
            told = Condition(names.RESTARTING, names.JOB_RESTARTING, missed.message)
            self.status = _tell(missed.status, told, now)

    def run(self) -> Decision:
        """From the coarsest question to the finest."""
        if self.job.suspend:
            return self._suspended()
        ends = deadline_at(self.job, self.status)
        if ends is not None and self.now >= ends:
            return self._fail(
                f"Job {self.job.key} has failed because it was active longer than the deadline of "
                f"{self.job.deadline_s} s.",
                {"type": "deadline", "summary": "the job was active longer than its deadline allows"},
            )
        verdict = restarts.look(
            self.job,
            self.found,
            self.status,
            departed=self.seen.departed,
            nodes=self.seen.nodes,
            requests=self.requests,
            now=stamp(self.now),
        )
        match verdict:
            case restarts.Hopeless():
                return self._fail(verdict.message, dict(verdict.fault))
            case restarts.Restart():
                decision = self._restart(verdict)
            case None:
                decision = self._go_on()
        if ends is not None and decision.wake_at is None:
            decision = replace(decision, wake_at=ends)
        return decision

    # ------------------------------------------------------------------------------------ ways out

    def _fail(self, message: str, fault: dict[str, object]) -> Decision:
        status = self._counted(replace(self.status, last_fault={"time": stamp(self.now), **fault}))
        status = replace(status, completion_time=stamp(self.now), stable=False)
        status = _tell(status, Condition(names.FAILED, names.JOB_FAILED, message), self.now)
        return Decision(status, status_first=True)

    def _suspended(self) -> Decision:
        """Everything that holds devices goes; what the job has counted stays."""
        actions: list[Action] = [
            DeletePod(pod.name, pod.uid, None, "the job is suspended")
            for pod in self.seen.pods
            if not pod.deleting
        ]
        if not self.seen.pods and self.seen.gang and self.seen.pod_group is not None:
            actions.append(DeletePodGroup())
        status = self._counted(replace(self.status, start_time="", stable=False))
        told = Condition(names.CREATED, names.JOB_SUSPENDED, f"Job {self.job.key} is suspended.")
        if conditions.find(status.conditions, names.RESTARTING):
            status = _retract(status, names.RESTARTING, self.now)
        # The loss of these pods is nobody's fault, so the wish is stored before they go.
        return Decision(_tell(status, told, self.now), tuple(actions), status_first=bool(actions))

    # ------------------------------------------------------------------------------------ restarts

    def _restart(self, restart: restarts.Restart) -> Decision:
        status = restarts.begin(self.status, restart)
        status = _tell(
            self._counted(status),
            Condition(names.RESTARTING, names.JOB_RESTARTING, restart.message),
            self.now,
        )
        if restart.lost:
            # The pods are gone already. Their successors wear the number of this restart, so it is counted
            # even if this controller dies before it has stored the status.
            blocked = self._supplies(status)
            if blocked is not None:
                return blocked
            return Decision(status, (CreatePods(restart.lost, status.restarts),))
        return Decision(status, self._removals(status), status_first=True)

    def _removals(self, status: Status) -> tuple[Action, ...]:
        force = self.job.labels.get(names.FAULT_SCHEDULING, "").endswith("force")
        removed = restarts.doomed(self.found, status, self.seen.nodes, self.requests, force=force)
        surplus = [(pod, None) for pod in self.found.surplus if not pod.deleting]
        return (
            *(DeletePod(pod.name, pod.uid, grace, "it is replaced by a restart") for pod, grace in removed),
            *(DeletePod(pod.name, pod.uid, grace, "the job has no place for it") for pod, grace in surplus),
        )

    # -------------------------------------------------------------------------------------- going on

    def _go_on(self) -> Decision:
        status = self.status
        if self.seen.failures:
            return self._refused(status)
        waiting = self._supplies(status)
        if waiting is not None:
            return waiting
        actions = self._removals(status)
        leaving = {action.uid for action in actions if isinstance(action, DeletePod)}
        actions += tuple(
            move for move in switching.moves(self.found, status.restarts) if _about(move) not in leaving
        )
        empty = self.found.empty
        if empty and not has_succeeded(self.job, self.found):
            actions = (*actions, CreatePods(empty, status.restarts))
        return self._state(status, actions)

    def _refused(self, status: Status) -> Decision:
        failure = self.seen.failures[0]
        told = Condition(names.CREATED, failure.reason, failure.message)
        return Decision(_tell(self._counted(status), told, self.now))

    def _supplies(self, status: Status) -> Decision | None:
        """Sync what pods need before they exist; None once nothing is in the way of creating pods."""
        if self.seen.failures:
            return self._refused(status)
        actions: list[Action] = []
        group = self.seen.pod_group
        if self.seen.gang and (group is None or not group.current):
            actions.append(SyncPodGroup())
        service = self.seen.service
        if self.seen.needs_service and (service is None or not service.current):
            actions.append(SyncService(status.leader_ip))
        if not self.seen.extras:
            actions.append(SyncExtras())
        if actions:
            return Decision(self._counted(status), tuple(actions))
        if self.seen.gang and group is not None and not self.found.regular and group.phase in WAITING_PHASES:
            # Only a job that has no pods at all waits for its turn: one that has lost a pod keeps its place.
            reason, message = _gate(group.phase, group.message)
            return Decision(_tell(self._counted(status), Condition(names.CREATED, reason, message), self.now))
        return None

    def _state(self, status: Status, actions: tuple[Action, ...]) -> Decision:
        job, found = self.job, self.found
        status = self._counted(status)
        if not status.start_time:
            status = replace(status, start_time=stamp(self.now))
        if has_succeeded(job, found):
            message = f"Job {job.key} successfully completed."
            status = replace(status, completion_time=stamp(self.now), stable=False)
            status = _tell(status, Condition(names.SUCCEEDED, names.JOB_SUCCEEDED, message), self.now)
            return Decision(self._made(status), status_first=True)
        idle = found.idle()
        if not idle:
            status = replace(status, stable=True, whole_job=False)
            told = Condition(names.RUNNING, names.JOB_RUNNING, f"Job {job.key} is running.")
        elif status.restarts or status.stable:
            told = conditions.find(status.conditions, names.RESTARTING) or Condition(
                names.RESTARTING,
                names.JOB_RESTARTING,
                restarts.restarting_message(job, [slot.kind for slot in idle]),
            )
        else:
            return Decision(_tell(status, _created(job.key), self.now), actions)
        return Decision(self._made(_tell(status, told, self.now)), actions)

    def _made(self, status: Status) -> Status:
        """The status once nothing is in the way of the job's pods any more.

        What once was (no room, a refusal, a suspension) must not be told for ever beside what the job does.
        """
        made = conditions.mend(status.conditions, _created(self.job.key), stamp(self.now))
        return replace(status, conditions=made)

    def _counted(self, status: Status) -> Status:
        """The status with the pods counted anew."""
        counts: dict[str, Counter[str]] = {replicas.kind: Counter() for replicas in self.job.replicas}
        ready = 0
        for slot, pod in self.found.regular.items():
            if not pod.deleting and pod.phase in COUNTED:
                counts[slot.kind][COUNTED[pod.phase]] += 1
            ready += pod.alive
        return replace(
            status,
            replicas={kind: dict(count) for kind, count in counts.items()},
            ready=f"{ready}/{self.job.total}",
        )


def _about(move: Action) -> str:
    """The UID of the pod that a step of a hot switch is about; one that leaves anyway needs no step."""
    match move:
        case CreateBackup(source_uid=uid) | AnnotatePod(uid=uid) | DeletePod(uid=uid):
            return uid
        case _:
            return ""


def _gate(phase: str, message: str) -> tuple[str, str]:
    if not phase:
        return names.POD_GROUP_NOT_INITIALIZED, names.SCHEDULER_SILENT
    return names.POD_GROUP_PENDING, message or names.NO_RESOURCES


def _retract(status: Status, kind: str, now: float) -> Status:
    kept = tuple(
        replace(entry, status="False", updated=stamp(now), changed=stamp(now))
        if entry.type == kind
        else entry
        for entry in status.conditions
    )
    return replace(status, conditions=kept)
