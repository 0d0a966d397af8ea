"""One decision about a job: what was seen goes in, what to do and what to say comes out.

`decide` is asked again after everything that it asked for was done, until it asks for nothing; only then is
the status stored, once. Where an action does away with the evidence of something that must be counted (a
failed pod is deleted), the status goes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from taskd.core.acjob import backoff, conditions, names, recoveryenv, relief, restarts, switching, validation
from taskd.core.acjob import job as jobs
from taskd.core.acjob import status as statuses
from taskd.core.acjob.actions import (
    Action,
    AnnotatePod,
    AssignStandby,
    BuryPod,
    CreateBackup,
    CreatePods,
    CreateStandbys,
    Decision,
    DeletePod,
    DeletePodGroup,
    SyncExtras,
    SyncPodGroup,
    SyncService,
)
from taskd.core.acjob.avoiding import Avoided, all_avoided
from taskd.core.acjob.conditions import Condition
from taskd.core.acjob.finishing import clean_up, deadline_at, has_succeeded
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.seen import FAILED, PENDING, RUNNING, SUCCEEDED, PodSeen, Snapshot, roster
from taskd.core.acjob.status import Status, stamp

GRACE: Final = "grace"
GRACE_S: Final = 900
"""How long pods may take to end with `fault-scheduling: grace`; then they are deleted by force."""
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
    # A queue that goes takes nothing from a job that has had its turn.
    missing_queue = None if seen.pods or status.start_time else seen.missing_queue
    if problems is None or missing_queue is not None:
        problems = validation.validate(seen.raw, missing_queue=missing_queue)
    course = _Course(seen.job or jobs.read(seen.raw), seen, status, now)
    return course.stall(validation.summary(problems)) if problems else course.run()


def _tell(status: Status, news: Condition, now: float) -> Status:
    return replace(status, conditions=conditions.tell(status.conditions, news, stamp(now)))


def _ended(status: Status, now: float) -> Status:
    """The status of a job that has ended: nothing is missed any more."""
    done: frozenset[Slot] = frozenset()
    return replace(status, completion_time=stamp(now), stable=False, finished=done, filled=done)


def _created(key: str) -> Condition:
    return Condition(names.CREATED, names.JOB_CREATED, f"Job {key} is created, its pods are starting.")


class _Course:
    """The way of one decision about a job that has not ended."""

    def __init__(self, job: Job, seen: Snapshot, status: Status, now: float) -> None:
        self.job = job
        self.seen = seen
        self.now = now
        self.found = roster(job, seen.pods)
        self.requests = restarts.requests_of(seen.raw)
        known = {str(request.get("id")) for request in self.requests}
        handled = {name: answer for name, answer in status.handled.items() if name in known}
        free = [
            *restarts.idle(self.found, self.requests),
            *restarts.joining(self.found, replace(status, handled=handled), self.requests),
        ]
        self._joined = not handled.keys() >= set(free)
        self.status = replace(
            status,
            strategy=",".join(job.strategies()),
            refusal=recoveryenv.refused(job),
            handled=dict.fromkeys(free, status.restarts) | handled,
            leader_ip=status.leader_ip or (seen.service.ip if seen.service else ""),
        )
        missed = restarts.missed(job, self.found, self.status, seen.departed, now)
        if missed is not None:
            told = Condition(names.RESTARTING, names.JOB_RESTARTING, missed.message)
            self.status = _tell(missed.status, told, now)
        self.found.finish(self._finished())
        self.status = replace(self.status, finished=self.found.finished)

    def _finished(self) -> set[Slot]:
        """The places that have done their share, in what this restart keeps of the job."""
        counts = {replicas.kind: replicas.count for replicas in self.job.replicas}
        found = {
            slot
            for slot in self.status.finished | self.seen.finished
            if slot.index < counts.get(slot.kind, 0)
        }
        replaced = self.status.restarts if self.status.whole_job else 0
        return found | {
            slot
            for slot, pod in self.found.regular.items()
            if pod.phase == SUCCEEDED and pod.version >= replaced
        }

    def run(self) -> Decision:
        """From the coarsest question to the finest."""
        if self.job.suspend:
            told = Condition(names.CREATED, names.JOB_SUSPENDED, f"Job {self.job.key} is suspended.")
            return self._suspended(told)
        if self._is_late():
            return self._late()
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
        if self._joined and decision.actions:
            # What they name may be another pod once this is done; they shall not be taken up for that one.
            decision = replace(decision, status_first=True)
        decision = _awake(decision, self._overdue(decision.status)[1])
        # Asked of the new status: the time runs from this very decision on where it lets the job begin.
        return _awake(decision, deadline_at(self.job, decision.status))

    def stall(self, mistakes: str) -> Decision:
        """Leave a job with mistakes as it is, until they are mended, it is halted, or its time is over."""
        if self._is_late():
            return self._late()
        told = Condition(names.FAILED, names.JOB_INVALID, mistakes)
        if self.job.suspend:
            return self._suspended(told)
        return _awake(Decision(_tell(self.status, told, self.now)), deadline_at(self.job, self.status))

    # ------------------------------------------------------------------------------------ ways out

    def _is_late(self) -> bool:
        ends = deadline_at(self.job, self.status)
        return ends is not None and self.now >= ends and not self.job.suspend

    def _late(self) -> Decision:
        return self._fail(
            f"Job {self.job.key} has failed because it was active longer than the deadline of "
            f"{self.job.deadline_s} s.",
            {"type": "deadline", "summary": "the job was active longer than its deadline allows"},
        )

    def _fail(self, message: str, fault: dict[str, object]) -> Decision:
        status = self._counted(replace(self.status, last_fault={"time": stamp(self.now), **fault}))
        status = _ended(status, self.now)
        status = _tell(status, Condition(names.FAILED, names.JOB_FAILED, message), self.now)
        return Decision(status, status_first=True)

    def _suspended(self, told: Condition) -> Decision:
        """Everything that holds devices goes; what the job has counted stays."""
        actions: list[Action] = [
            DeletePod(pod.name, pod.uid, None, "the job is suspended")
            for pod in self.seen.pods
            if not pod.deleting
        ]
        if not self.seen.pods and self.seen.gang and self.seen.pod_group is not None:
            actions.append(DeletePodGroup())
        # Whoever resumes it starts it anew: no restart is under way then, nor does one wait.
        self.found.finish(())
        status = replace(self.status, start_time="", stable=False, whole_job=False, row=0, restarted_at="")
        status = self._counted(replace(status, finished=frozenset()))
        if conditions.find(status.conditions, names.RESTARTING):
            status = _retract(status, names.RESTARTING, self.now)
        # The loss of these pods is nobody's fault, so the wish is stored before they go.
        return Decision(_tell(status, told, self.now), tuple(actions), status_first=bool(actions))

    # ------------------------------------------------------------------------------------ restarts

    def _restart(self, restart: restarts.Restart) -> Decision:
        status = restarts.begin(self.status, restart, self.now)
        status = _tell(
            self._counted(status),
            Condition(names.RESTARTING, names.JOB_RESTARTING, restart.message),
            self.now,
        )
        if restart.lost and not backoff.delay_s(status.row):
            # The pods are gone already. Their successors wear the number of this restart, so it is counted
            # even if this controller dies before it has stored the status.
            blocked = self._supplies(status)
            if blocked is not None:
                return blocked
            return Decision(status, self._placed(self._fill(restart.lost, status), status))
        return Decision(status, self._removals(status), status_first=True)

    def _removals(self, status: Status) -> tuple[Action, ...]:
        force = self.job.labels.get(names.FAULT_SCHEDULING, "").endswith("force")
        removed = restarts.doomed(
            self.found, status, self.seen.nodes, self.requests, avoided=self._avoided(status), force=force
        )
        surplus = [(pod, None) for pod in self.found.surplus if not pod.deleting]
        late, _ = self._overdue(status)
        taken = {pod.uid for pod, _ in removed}
        return (
            *(DeletePod(pod.name, pod.uid, grace, "it is replaced by a restart") for pod, grace in removed),
            *(
                DeletePod(pod.name, pod.uid, 0, f"it has not ended within {GRACE_S} s")
                for pod in late
                if pod.uid not in taken
            ),
            *(DeletePod(pod.name, pod.uid, grace, "the job has no place for it") for pod, grace in surplus),
            # Its successor has its name, and what its kubelet has yet to clear up is in nobody's way.
            *(
                BuryPod(pod.name, pod.uid)
                for pod in self.found.regular.values()
                if pod.over and pod.phase == FAILED and pod.uid not in taken
            ),
        )

    def _overdue(self, status: Status) -> tuple[list[PodSeen], float | None]:
        """Pods that were given time to end and have not, where the job sets that a limit."""
        if self.job.labels.get(names.FAULT_SCHEDULING, "").strip() != GRACE:
            return [], None
        return restarts.overdue(self.found, status, self.requests, patience_s=float(GRACE_S), now=self.now)

    # -------------------------------------------------------------------------------------- going on

    def _go_on(self) -> Decision:
        if self.seen.failures:
            return self._refused(self.status) if self._held_up() else self._state(self.status, ())
        waiting = self._supplies(self.status)
        if waiting is not None:
            return waiting
        if not self.status.start_time:
            self.status = replace(self.status, start_time=stamp(self.now))
            if self._is_late():  # a deadline of 0
                return self._late()
        status = self.status
        actions = self._removals(status)
        leaving = {action.uid for action in actions if isinstance(action, DeletePod | BuryPod)}
        ready = relief.running(self.found, status, self._unfit(status))
        moves = switching.moves(self.found, status.restarts, ready)
        actions += tuple(move for move in moves if _about(move) not in leaving)
        empty, waits_until = self.found.empty, None
        if empty and not has_succeeded(self.job, self.found):
            waits_until = backoff.over_at(status)
            if waits_until is None or self.now >= waits_until:
                actions, waits_until = (*actions, *self._fill(empty, status)), None
        upkeep, look_at = self._upkeep(status, actions)
        actions = self._placed((*actions, *upkeep), status)
        decision = _awake(self._state(status, actions), waits_until)
        return _awake(_awake(decision, look_at), restarts.avoids_until(self.found, status, self.now))

    def _avoided(self, status: Status) -> tuple[Avoided, ...]:
        """The nodes that new pods are kept off."""
        return all_avoided(self.seen.raw, restarts.out_of_reach(status, self.requests, self.now))

    def _placed(self, actions: tuple[Action, ...], status: Status) -> tuple[Action, ...]:
        """Have all pods that are made kept off these nodes."""
        avoid = self._avoided(status)
        if not avoid:
            return actions
        made = CreatePods | CreateStandbys | CreateBackup
        return tuple(replace(each, avoid=avoid) if isinstance(each, made) else each for each in actions)

    def _unfit(self, status: Status) -> relief.Unfit:
        """The nodes on which a pod that is kept ready is of little use."""
        cut = restarts.out_of_reach(status, self.requests, self.now)
        unreached = self.seen.nodes.gone | self.seen.nodes.unreachable | cut
        return relief.unfit(self.job, self._avoided(status), unreached)

    def _fill(self, slots: Sequence[Slot], status: Status) -> tuple[Action, ...]:
        """Have these places filled: by pods that are kept ready as far as there are any."""
        assigned = restarts.assigned(self.job, self.found, status, self.requests)
        chosen = relief.choose(self.found, slots, status, self._unfit(status), assigned)
        rest = tuple(slot for slot in slots if slot not in chosen)
        made = (CreatePods(rest, status.restarts),) if rest else ()
        return (*relief.assign(chosen, status.restarts), *made)

    def _upkeep(self, status: Status, actions: tuple[Action, ...]) -> tuple[tuple[Action, ...], float | None]:
        """Look after the pods that are kept ready; not while some of them are about to get a place."""
        if any(isinstance(action, AssignStandby) for action in actions):
            return (), None
        whole = not self.found.idle()
        return relief.upkeep(self.job, self.found, status, self.now, self._unfit(status), whole=whole)

    def _held_up(self) -> bool:
        """Whether what was refused is something that the job needs now; other refusals are Events.

        Pods that run do not reach their leader without its Service. They need no change of their PodGroup,
        and none of them needs a standby.
        """
        reasons = {failure.reason for failure in self.seen.failures}
        if names.SYNC_SERVICE_FAILED in reasons or self.found.empty:
            return True
        return names.SYNC_POD_GROUP_FAILED in reasons and bool(self.found.idle())

    def _refused(self, status: Status) -> Decision:
        failure = self.seen.failures[0]
        told = Condition(names.CREATED, failure.reason, failure.message)
        idle = self.found.idle()
        if self._restarts(status, idle):
            # A job that has run does not go back to its beginning because a pod cannot be replaced yet.
            cause = self._cause(status, idle)
            told = replace(
                cause, message=f"{cause.message}{restarts.REFUSED}{failure.reason}: {failure.message}"
            )
        return Decision(_tell(self._counted(status), told, self.now))

    def _supplies(self, status: Status) -> Decision | None:
        """Sync what pods need before they exist; None once nothing is in the way of creating pods."""
        if self.seen.failures:
            return self._refused(status)
        actions: list[Action] = []
        group = self.seen.pod_group
        if self.seen.gang and (group is None or not group.current):
            actions.append(SyncPodGroup(self.seen.gone))
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
        if has_succeeded(job, found):
            message = f"Job {job.key} successfully completed."
            status = _ended(status, self.now)
            status = _tell(status, Condition(names.SUCCEEDED, names.JOB_SUCCEEDED, message), self.now)
            return Decision(self._made(status), status_first=True)
        idle = found.idle()
        if not idle:
            places = {replicas.kind: replicas.count for replicas in job.replicas} if job.inference else {}
            status = replace(status, stable=True, whole_job=False, filled=frozenset(), places=places)
            told = Condition(names.RUNNING, names.JOB_RUNNING, f"Job {job.key} is running.")
        elif self._restarts(status, idle):
            told = self._cause(status, idle)
        else:
            return Decision(_tell(status, _created(job.key), self.now), actions)
        return Decision(self._made(_tell(status, told, self.now)), actions)

    def _restarts(self, status: Status, idle: Sequence[Slot]) -> bool:
        """Whether a place is empty because something was lost, rather than not there yet."""
        if status.stable:
            return not all(restarts.added(status, slot) for slot in idle)
        return bool(status.restarted_at or conditions.find(status.conditions, names.RESTARTING))

    def _cause(self, status: Status, idle: Sequence[Slot]) -> Condition:
        """The restart that is under way, in the words it began with."""
        told = conditions.find(status.conditions, names.RESTARTING)
        if told is not None:
            return replace(told, message=told.message.partition(restarts.REFUSED)[0])
        message = restarts.restarting_message(self.job, [slot.kind for slot in idle])
        return Condition(names.RESTARTING, names.JOB_RESTARTING, message)

    def _made(self, status: Status) -> Status:
        """The status once nothing is in the way of the job's pods any more.

        What once was (no room, a refusal, a suspension) must not be told for ever beside what the job does.
        """
        made = conditions.mend(status.conditions, _created(self.job.key), stamp(self.now))
        return replace(status, conditions=made)

    def _counted(self, status: Status) -> Status:
        """The status with the pods counted anew."""
        counts: dict[str, Counter[str]] = {replicas.kind: Counter() for replicas in self.job.replicas}
        ready = len(self.found.finished)
        for slot in self.found.finished:
            counts[slot.kind][COUNTED[SUCCEEDED]] += 1
        for slot, pod in self.found.regular.items():
            if slot in self.found.finished:
                continue
            if not pod.deleting and pod.phase in COUNTED:
                counts[slot.kind][COUNTED[pod.phase]] += 1
            ready += pod.alive
        return replace(
            status,
            replicas={kind: dict(count) for kind, count in counts.items()},
            ready=f"{ready}/{self.job.total}",
            filled=restarts.filled(self.found, status),
        )


def _about(move: Action) -> str:
    """The UID of the pod that a step of a hot switch is about; one that leaves anyway needs no step."""
    match move:
        case CreateBackup(source_uid=uid) | AnnotatePod(uid=uid) | DeletePod(uid=uid):
            return uid
        case _:
            return ""


def _awake(decision: Decision, at: float | None) -> Decision:
    """The decision, to be taken again at that time at the latest."""
    if at is None or (decision.wake_at is not None and decision.wake_at <= at):
        return decision
    return replace(decision, wake_at=at)


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
