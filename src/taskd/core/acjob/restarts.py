"""When a job restarts, what the restart replaces, and whether it still may.

A restart is a *generation* of pods. It begins when the job loses a pod, and everything that the job loses
until its pods have all run together again belongs to it: a node that dies takes several pods, peers of a dead
process end with errors of their own, and none of that is a second restart. The number of the generation is in
the job's status and on every pod that it made, so it can be read back from either after a crash.

- A pod of the present generation that is lost begins the next one; so does any, once the job has run whole.
- A pod of an older generation that is lost before that belongs to the present one.
- Where something outside took a pod (eviction, a lost node, somebody's deletion or request), peers that
  failed by the same look failed because of it: their errors neither end the job nor use up its retries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from taskd.core.acjob import avoiding, backoff, devices, faults, names, recoveryenv
from taskd.core.acjob.avoiding import Avoided
from taskd.core.acjob.job import WORKER, Job, Json, Slot, mapping
from taskd.core.acjob.pods import shape
from taskd.core.acjob.seen import Nodes, PodSeen, Roster
from taskd.core.acjob.status import Status, moment, stamp

POD_FAILED: Final = "pod-failed"
EXIT_CODE: Final = "exit-code"
EVICTED: Final = "evicted"
POD_LOST: Final = "pod-lost"
NODE_LOST: Final = "node-lost"
REQUESTED: Final = "requested"
RESIZED: Final = "resized"
REFUSED: Final = " Refused: "
"""Between the cause of a restart and what the API server says against its pods."""
AVOID_S: Final = 60.0
OWN_FAILURES: Final = frozenset({POD_FAILED, EXIT_CODE})


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart that must begin now."""

    cause: str
    message: str
    fault: Mapping[str, Any]
    whole_job: bool = False
    counts: bool = True
    is_retry: bool = False
    lost: tuple[Slot, ...] = ()
    """The places that are empty already; otherwise the pods have to be deleted first."""
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hopeless:
    """The job cannot go on."""

    message: str
    fault: Mapping[str, Any]


def pod_failed_message(job: Job) -> str:
    """Why a job without tries has failed; the wording is the seed's."""
    return f"Job {job.key} has failed because has pod failed."


def backoff_message(job: Job) -> str:
    """Why a job has failed that restarted too often; the wording is the seed's, without the namespace."""
    return f"Job {job.name} has failed because it has reached the specified backoff limit"


def restarting_message(job: Job, kinds: Sequence[str]) -> str:
    """What a job says that restarts pods of these types."""
    return f"Job {job.name} is restarting because {' and '.join(dict.fromkeys(kinds))} replica(s) failed."


@dataclass(frozen=True, slots=True)
class Missed:
    """A restart that the pods know of and the status does not."""

    status: Status
    message: str


def missed(
    job: Job, found: Roster, status: Status, departed: Mapping[Slot, int], now: float
) -> Missed | None:
    """What pods of a later generation tell, there or gone by now.

    Pods that were lost are replaced before the status is written, so that the loss costs one write and not
    two; whoever comes after a crash between the two reads the count off their successors.
    """
    ahead = {slot: pod.version for slot, pod in found.regular.items() if pod.version > status.restarts}
    ahead |= {slot: version for slot, version in departed.items() if version > status.restarts}
    if not ahead:
        return None
    slots = sorted(ahead, key=lambda slot: (slot.kind == WORKER, slot.index))
    latest = max(ahead.values())
    causes = {**status.causes, POD_LOST: status.causes.get(POD_LOST, 0) + latest - status.restarts}
    told = replace(
        status,
        restarts=latest,
        row=backoff.row(status, own_failure=False, now=now),
        restarted_at=stamp(now),
        stable=False,
        whole_job=False,
        filled=frozenset(),
        causes=causes,
        last_fault=faults.lost(job.pod_name(slots[0]), POD_LOST, "", stamp(now)),
    )
    return Missed(told, restarting_message(job, [slot.kind for slot in slots]))


def look(
    job: Job,
    found: Roster,
    status: Status,
    *,
    departed: Mapping[Slot, int],
    nodes: Nodes,
    requests: Sequence[Json],
    now: str,
) -> Restart | Hopeless | None:
    """What the pods say: a restart that has to begin, the end of the job, or nothing new."""
    fresh = [pod for pod in found.regular.values() if status.stable or pod.version >= status.restarts]
    failed = [pod for pod in fresh if pod.failed]
    verdict = (
        _evicted(job, [pod for pod in failed if pod.evicted], now)
        or _node_lost(job, [pod for pod in fresh if nodes.took(pod)], now)
        or _asked(job, found, status, requests, now)
        or (_leaving(job, found, fresh, now) if failed else None)
        or (_missing(job, found, departed, status, now) if failed else None)
        or _failed(job, failed, status, now)
        or _resized(job, found, status, now)
        or _missing(job, found, departed, status, now)
    )
    if isinstance(verdict, Restart) and verdict.counts:
        limit = job.restart_limit()
        if limit is not None and status.restarts + 1 - status.voluntary > limit:
            return Hopeless(backoff_message(job), verdict.fault)
    return verdict


def begin(status: Status, restart: Restart, now: float) -> Status:
    """The status once that restart has begun."""
    return replace(
        status,
        restarts=status.restarts + 1,
        voluntary=status.voluntary + (not restart.counts),
        retries=status.retries + restart.is_retry,
        row=backoff.row(status, own_failure=restart.cause in OWN_FAILURES, now=now),
        restarted_at=stamp(now),
        stable=False,
        whole_job=restart.whole_job,
        finished=frozenset() if restart.whole_job else status.finished,
        filled=frozenset(),
        causes={**status.causes, restart.cause: status.causes.get(restart.cause, 0) + 1},
        last_fault=restart.fault or status.last_fault,
        handled={**status.handled, **dict.fromkeys(restart.requests, status.restarts + 1)},
    )


def doomed(
    found: Roster,
    status: Status,
    nodes: Nodes,
    requests: Sequence[Json],
    *,
    avoided: Collection[Avoided],
    force: bool,
) -> list[tuple[PodSeen, int | None]]:
    """The pods that the restart under way still has to remove, each with its grace period.

    A request may say for its own pods whether they have time to end; else the job's label says so. Where
    several say something else of one pod, it has none: one of them may know that nobody reaches it. Also
    those that wait for a node and are kept off some that may be used by now.
    """
    old = {pod.uid for pod in _old(found, status)}
    named = _named(status, requests)
    whole = [each.get("force") for each in _answered(status, requests) if each.get("scope") == "job"]
    removals: list[tuple[PodSeen, int | None]] = []
    for pod in found.regular.values():
        wish = named.get(pod.name)
        asked = wish.force if wish is not None and wish.means(pod) else None
        goes = pod.uid in old and (pod.failed or status.whole_job)
        if pod.uid in old and nodes.took(pod):
            removals.append((pod, 0))
        elif asked is not None or goes:
            hard = _is_hard([*(asked or ()), *(whole if goes else ())], force=force)
            # Without time also where somebody asked it to go before: nobody there may be able to confirm it.
            if not pod.deleting or (asked is not None and hard):
                removals.append((pod, 0 if hard else None))
    removals += [(pod, 0) for pod in _placeable(found) if avoiding.in_vain(pod, avoided)]
    return removals


def overdue(
    found: Roster, status: Status, requests: Sequence[Json], *, patience_s: float, now: float
) -> tuple[list[PodSeen], float | None]:
    """The pods that a restart removes and that have not ended in their time, and when to look again."""
    named = _named(status, requests)
    going = {pod.uid: pod for pod in _old(found, status)}
    going |= {
        pod.uid: pod for pod in found.regular.values() if pod.name in named and named[pod.name].means(pod)
    }
    due = {uid: pod.deleted_at + patience_s for uid, pod in going.items() if pod.deleted_at is not None}
    late = [going[uid] for uid, at in due.items() if now >= at]
    return late, min((at for at in due.values() if now < at), default=None)


def out_of_reach(status: Status, requests: Sequence[Json], now: float) -> frozenset[str]:
    """The nodes on which pods of the restart under way were out of reach, for as long as that is believed.

    Not for long: by then the cluster itself knows whether the node is there.
    """
    if _believed_until(status) <= now:
        return frozenset()
    return frozenset(str(node) for each in _answered(status, requests) for node in each.get("avoid") or ())


def assigned(job: Job, found: Roster, status: Status, requests: Sequence[Json]) -> dict[Slot, str]:
    """The standbys that requests give to places, as far as those are not filled anew.

    Those of all restarts since the job last ran whole: a pod may take its time to go, and another be lost.
    """
    listed: dict[str, tuple[int, str]] = {}
    for request in requests:
        answer = status.handled.get(str(request.get("id")), -1)
        if status.restarts - status.row < answer <= status.restarts:
            given = mapping(request.get("standbys"))
            listed |= {rank: (answer, str(pod)) for rank, pod in given.items()}
    if not listed:
        return {}
    ranks = devices.world(job)
    places = {slot: listed[rank] for slot in job.slots() if (rank := str(ranks.node_rank(slot))) in listed}
    filled = found.regular
    return {
        slot: pod
        for slot, (answer, pod) in places.items()
        if slot not in filled or filled[slot].version < answer
    }


def avoids_until(found: Roster, status: Status, now: float) -> float | None:
    """When a pod that waits for a node need not be kept off one any more; None where none does."""
    until = _believed_until(status)
    return until if now < until and any(map(avoiding.waits, _placeable(found))) else None


def _believed_until(status: Status) -> float:
    began = moment(status.restarted_at) if status.restarted_at else None
    return began + AVOID_S if began is not None else 0.0


def _placeable(found: Roster) -> Iterator[PodSeen]:
    yield from found.regular.values()
    yield from found.standbys


def _old(found: Roster, status: Status) -> list[PodSeen]:
    return [pod for pod in found.regular.values() if not status.stable and pod.version < status.restarts]


def _is_hard(wishes: Collection[object], *, force: bool) -> bool:
    """Whether pods get no time to end: one wish for that is enough, and without any the label counts."""
    said = [wish for wish in wishes if isinstance(wish, bool)]
    return any(said) if said else force


def _failed(job: Job, fresh: Sequence[PodSeen], status: Status, now: str) -> Restart | Hopeless | None:
    culprit = faults.first(fresh)
    if culprit is None:
        return None
    remaining = job.retry_times() - status.retries
    ways = {pod.name: _way(job, pod, remaining) for pod in fresh}
    fault = faults.describe(culprit, ways[culprit.name] or POD_FAILED, now)
    if None in ways.values():
        if job.retry_times() > 0:
            message = f"Job {job.key} has failed because pod failed and remain retry times is 0."
            return Hopeless(message, fault)
        return Hopeless(pod_failed_message(job), fault)
    if POD_FAILED in ways.values():
        message = f"Job {job.key} is unconditional retry job and remain retry times is <{remaining}>."
        return Restart(POD_FAILED, message, fault, whole_job=not _only_pods(job), is_retry=True)
    kinds = [pod.slot.kind for pod in fresh if pod.slot]
    return Restart(ways[culprit.name] or POD_FAILED, restarting_message(job, kinds), fault)


def _way(job: Job, pod: PodSeen, remaining: int) -> str | None:
    """How this pod may come back, or None."""
    if pod.slot and job.of_kind(pod.slot.kind).restart_policy == "ExitCode" and faults.retryable(pod):
        return EXIT_CODE
    return POD_FAILED if remaining > 0 else None


def _only_pods(job: Job) -> bool:
    """Whether the other pods survive the loss of one: the label says so, or their processes recover."""
    return (
        job.labels.get(names.POD_RESCHEDULING) == "on"
        or job.labels.get(names.PROCESS_RECOVER) == "on"
        or recoveryenv.keeps_processes(job)
    )


def _evicted(job: Job, evicted: Sequence[PodSeen], now: str) -> Restart | None:
    first = faults.first(evicted)
    if first is None:
        return None
    kinds = [pod.slot.kind for pod in evicted if pod.slot]
    return Restart(EVICTED, restarting_message(job, kinds), faults.describe(first, EVICTED, now))


def _leaving(job: Job, found: Roster, fresh: Sequence[PodSeen], now: str) -> Restart | None:
    """Pods on their way out, while peers have failed already.

    Nobody here deletes a pod of the present generation, hot switches apart. Without a failed peer the
    restart begins when the pod is gone: until then it may still be saving.
    """
    leaving = [pod for pod in fresh if pod.deleting and not found.relieved(pod)]
    if not leaving:
        return None
    fault = faults.lost(leaving[0].name, POD_LOST, "", now)
    kinds = [pod.slot.kind for pod in leaving if pod.slot]
    return Restart(POD_LOST, restarting_message(job, kinds), fault)


def _missing(
    job: Job, found: Roster, departed: Mapping[Slot, int], status: Status, now: str
) -> Restart | None:
    lost = [
        slot
        for slot in found.empty
        if (status.stable and not added(status, slot))
        or slot in status.filled
        or departed.get(slot, -1) >= status.restarts
    ]
    if not lost:
        return None
    fault = faults.lost(job.pod_name(lost[0]), POD_LOST, "", now)
    return Restart(POD_LOST, restarting_message(job, [slot.kind for slot in lost]), fault, lost=found.empty)


def filled(found: Roster, status: Status) -> frozenset[Slot]:
    """The places that have a pod of the restart under way, or of the first start.

    Whoever looks next, and has not seen one of these pods go, knows by this that it was there. Not those that
    are made anew when a node may be used again: their going is no loss.
    """
    if status.stable or not status.start_time:
        return frozenset()
    return frozenset(
        slot
        for slot, pod in found.regular.items()
        if pod.version >= status.restarts and not avoiding.unplaced(pod)
    )


def added(status: Status, slot: Slot) -> bool:
    """Whether the job has got this place since it was last whole."""
    return slot.index >= status.places.get(slot.kind, slot.index + 1)


def _resized(job: Job, found: Roster, status: Status, now: str) -> Restart | None:
    """Pods that were made for another shape than the job has now cannot train with the others.

    Of whatever generation: those that survived earlier restarts too, but not those that this one removes.
    The sum of the processes is not enough: 1 + 3 pods of 4 are as many as 1 + 1 of 8. The pods of an
    inference service are told nothing of each other.
    """
    if job.inference:
        return None
    wanted = shape(job)
    stale = [
        pod
        for pod in found.regular.values()
        if pod.annotations.get(names.SHAPE, wanted) != wanted
        and not pod.deleting
        and not (status.whole_job and pod.version < status.restarts)
    ]
    if not stale:
        return None
    before = stale[0].annotations[names.SHAPE]
    message = f"Job {job.name} is restarting because its shape was changed from <{before}> to <{wanted}>."
    return Restart(
        RESIZED, message, {"type": RESIZED, "summary": message, "time": now}, whole_job=True, counts=False
    )


def _node_lost(job: Job, taken: Sequence[PodSeen], now: str) -> Restart | None:
    if not taken:
        return None
    fault = faults.lost(taken[0].name, NODE_LOST, taken[0].node, now)
    kinds = [pod.slot.kind for pod in taken if pod.slot]
    return Restart(NODE_LOST, restarting_message(job, kinds), fault)


def _asked(job: Job, found: Roster, status: Status, requests: Sequence[Json], now: str) -> Restart | None:
    """A request to move pods, by whoever watches devices and nodes."""
    fresh = [request for request in requests if request.get("id") and request["id"] not in status.handled]
    if not fresh:
        return None  # those that name nobody are among the handled ones already, see `idle`
    whole_job = any(request.get("scope") == "job" for request in fresh)
    reasons = "; ".join(dict.fromkeys(str(request.get("reason") or request["id"]) for request in fresh))
    pods = [str(pod) for request in fresh for pod in request.get("pods") or ()]
    fault = {"type": REQUESTED, "summary": reasons, "time": now}
    nodes = {job.pod_name(slot): pod.node for slot, pod in found.regular.items()}
    if pods:
        fault |= {"pod": pods[0], **({"node": nodes[pods[0]]} if nodes.get(pods[0]) else {})}
    return Restart(
        REQUESTED,
        f"Job {job.name} is restarting because it was asked to: {reasons}",
        fault,
        whole_job=whole_job,
        counts=not all(request.get("voluntary") for request in fresh),
        requests=tuple(str(request["id"]) for request in fresh),
    )


def idle(found: Roster, requests: Sequence[Json]) -> Iterator[str]:
    """Requests that name no pod which there is: there is nothing to move, so they cost no restart."""
    there = {pod.name for pod in found.regular.values()}
    alive = {pod.uid for pod in found.regular.values()}
    for request in requests:
        uids = request.get("uids") or ()
        nobody = there.isdisjoint(request.get("pods") or ()) or (uids and alive.isdisjoint(uids))
        if request.get("id") and request.get("scope") != "job" and nobody:
            yield str(request["id"])


def joining(found: Roster, status: Status, requests: Sequence[Json]) -> Iterator[str]:
    """Requests for pods that the restart under way removes already: they may say how, and cost no other."""
    if status.stable:
        return
    named = _named(status, requests)
    going = {
        pod.uid
        for pod in _old(found, status)
        if status.whole_job or (pod.name in named and named[pod.name].means(pod))
    }
    for request in requests:
        wanted, uids = request.get("pods") or (), request.get("uids") or ()
        meant = {pod.uid for pod in found.regular.values() if pod.name in wanted}
        meant = meant.intersection(uids) if uids else meant
        if request.get("id") and request.get("scope") != "job" and meant and meant <= going:
            yield str(request["id"])


class _Named(NamedTuple):
    """What requests say of one pod: the generation that is to replace it, and how it is to end."""

    version: int
    force: tuple[object, ...] = ()
    uids: tuple[str, ...] = ()
    """Which pods of that name are meant, where a request says so."""

    def means(self, pod: PodSeen) -> bool:
        """Whether that very pod is to be replaced."""
        return pod.version < self.version and (not self.uids or pod.uid in self.uids)


def _named(status: Status, requests: Sequence[Json]) -> dict[str, _Named]:
    """The pods that requests name."""
    named: dict[str, _Named] = {}
    for request in requests:
        answer = status.handled.get(str(request.get("id")))
        if answer is None:
            continue
        for name in map(str, request.get("pods") or ()):
            known = named.get(name, _Named(answer))
            if answer > known.version:
                known = _Named(answer)
            if answer == known.version:
                uids = (*known.uids, *map(str, request.get("uids") or ()))
                named[name] = _Named(answer, (*known.force, request.get("force")), uids)
    return named


def _answered(status: Status, requests: Sequence[Json]) -> list[Json]:
    """The requests that the restart under way answers."""
    return [each for each in requests if status.handled.get(str(each.get("id"))) == status.restarts]


def requests_of(raw: Json) -> tuple[Json, ...]:
    """The requests in a job's status."""
    listed = mapping(raw.get("status")).get("requests") or ()
    return tuple(mapping(request) for request in listed if isinstance(request, Mapping))
