"""The status of a job: what it has come to, and every counter that a decision needs.

All of it is in the object, so a controller that dies at any point is followed by one that goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from taskd.core.acjob import conditions
from taskd.core.acjob.conditions import Condition
from taskd.core.acjob.job import Json, Slot, mapping

COUNTS: Final = ("active", "pending", "succeeded", "failed")


@dataclass(frozen=True, slots=True)
class Status:
    """`status` of an AscendJob."""

    conditions: tuple[Condition, ...] = ()
    replicas: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    start_time: str = ""
    completion_time: str = ""
    observed_generation: int = 0
    restarts: int = 0
    """The generation of pods that is wanted: 0 at first, one more with every restart."""
    voluntary: int = 0
    """Those of the restarts that somebody asked for; they do not count towards the limit."""
    retries: int = 0
    """Unconditional retries used up."""
    row: int = 0
    """Restarts since the job was last well: each waits longer than the one before."""
    restarted_at: str = ""
    """When the last restart began; forgotten when the job is suspended."""
    stable: bool = False
    """Whether the pods of this generation have all run together once."""
    whole_job: bool = False
    """Whether this restart replaces every pod, rather than those that were lost."""
    finished: frozenset[Slot] = frozenset()
    """The places whose pods have done their share, though the pods may be gone since."""
    filled: frozenset[Slot] = frozenset()
    """The places that had a pod of this generation, until all have run together.

    One of them that is empty was lost, though nobody may have seen the pod go.
    """
    places: Mapping[str, int] = field(default_factory=dict)
    """The size that an inference job had when it was last whole: what is beyond was added, not lost."""
    leader_ip: str = ""
    ready: str = ""
    strategy: str = ""
    refusal: str = ""
    """Why the strategies that the job asks for are not in force."""
    last_fault: Mapping[str, Any] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)
    handled: Mapping[str, int] = field(default_factory=dict)
    """Requests that were taken up, by id, with the generation that answers them."""

    @property
    def last(self) -> Condition | None:
        """The newest condition: the state of the job."""
        return self.conditions[-1] if self.conditions else None

    def as_json(self) -> dict[str, Any]:
        """As it is applied to the API server; what is empty is left out."""
        entries: dict[str, Any] = {
            "conditions": [condition.as_json() for condition in self.conditions],
            # Zeros too: what another has written is taken back only by writing it.
            "replicaStatuses": {
                kind: {name: counts.get(name, 0) for name in COUNTS} for kind, counts in self.replicas.items()
            },
            "startTime": self.start_time,
            "completionTime": self.completion_time,
            "observedGeneration": self.observed_generation,
            "restarts": self.restarts,
            "voluntaryRestarts": self.voluntary,
            "retries": self.retries,
            "restartsInARow": self.row,
            "lastRestartTime": self.restarted_at,
            "stable": self.stable,
            "wholeJob": self.whole_job,
            "finished": _written(self.finished),
            "filled": _written(self.filled),
            "places": dict(self.places),
            "masterAddr": self.leader_ip,
            "readyReplicas": self.ready,
            "recoverStrategy": self.strategy,
            "recoverRefused": self.refusal,
            "lastFault": dict(self.last_fault),
            "restartCauses": dict(self.causes),
            "handledRequests": dict(self.handled),
        }
        kept = {"conditions", "replicaStatuses", "restarts", "recoverStrategy"}
        return {name: value for name, value in entries.items() if value or name in kept}


def read(raw: Json) -> Status:
    """The stored status of a job; what is missing or odd has its first value."""
    stored = mapping(raw.get("status"))
    return Status(
        conditions=conditions.read(stored.get("conditions")),
        replicas=_counts(stored.get("replicaStatuses")),
        start_time=str(stored.get("startTime") or ""),
        completion_time=str(stored.get("completionTime") or ""),
        observed_generation=_number(stored.get("observedGeneration")),
        restarts=_number(stored.get("restarts")),
        voluntary=_number(stored.get("voluntaryRestarts")),
        retries=_number(stored.get("retries")),
        row=_number(stored.get("restartsInARow")),
        restarted_at=str(stored.get("lastRestartTime") or ""),
        stable=stored.get("stable") is True,
        whole_job=stored.get("wholeJob") is True,
        finished=_slots(mapping(stored.get("finished"))),
        filled=_slots(mapping(stored.get("filled"))),
        places={key: _number(value) for key, value in mapping(stored.get("places")).items()},
        leader_ip=str(stored.get("masterAddr") or ""),
        ready=str(stored.get("readyReplicas") or ""),
        strategy=str(stored.get("recoverStrategy") or ""),
        refusal=str(stored.get("recoverRefused") or ""),
        last_fault=mapping(stored.get("lastFault")),
        causes={key: _number(value) for key, value in mapping(stored.get("restartCauses")).items()},
        handled={key: _number(value) for key, value in mapping(stored.get("handledRequests")).items()},
    )


def _counts(stored: object) -> dict[str, dict[str, int]]:
    return {
        kind: {name: count for name, count in mapping(counts).items() if isinstance(count, int) and count}
        for kind, counts in mapping(stored).items()
    }


def _written(slots: Iterable[Slot]) -> dict[str, str]:
    """Places by type, as ranges: a job may have thousands."""
    indices: dict[str, list[int]] = {}
    for slot in sorted(slots):
        indices.setdefault(slot.kind, []).append(slot.index)
    return {kind: ",".join(_ranges(listed)) for kind, listed in indices.items()}


def _ranges(ascending: list[int]) -> Iterable[str]:
    begin = 0
    for at, index in enumerate(ascending, start=1):
        if at == len(ascending) or ascending[at] != index + 1:
            first = ascending[begin]
            yield f"{first}-{index}" if first != index else f"{index}"
            begin = at


def _slots(written: Json) -> frozenset[Slot]:
    return frozenset().union(*(_listed(kind, str(text)) for kind, text in written.items()))


@lru_cache(maxsize=64)  # a look reads the status several times, and a job may have thousands of places
def _listed(kind: str, text: str) -> frozenset[Slot]:
    found: set[Slot] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(Slot(kind, index) for index in range(int(first), int(last or first) + 1))
    return frozenset(found)


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def stamp(now: float) -> str:
    """A time as Kubernetes writes it."""
    return _stamp(int(now))


@lru_cache(maxsize=64)  # a look stamps a dozen fields with the same second
def _stamp(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> float | None:
    """The time that a stamp says, or None where it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
