"""The status of a job: what it has come to, and every counter that a decision needs.

All of it is in the object, so a controller that dies at any point is followed by one that goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from taskd.core.acjob import conditions
from taskd.core.acjob.conditions import Condition
from taskd.core.acjob.job import Json, mapping


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
    stable: bool = False
    """Whether the pods of this generation have all run together once."""
    whole_job: bool = False
    """Whether this restart replaces every pod, rather than those that were lost."""
    leader_ip: str = ""
    ready: str = ""
    strategy: str = ""
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
            # Of a map whose last entry goes, server-side apply leaves null, which the definition refuses.
            "replicaStatuses": {
                kind: dict(counts) or {"active": 0} for kind, counts in self.replicas.items()
            },
            "startTime": self.start_time,
            "completionTime": self.completion_time,
            "observedGeneration": self.observed_generation,
            "restarts": self.restarts,
            "voluntaryRestarts": self.voluntary,
            "retries": self.retries,
            "stable": self.stable,
            "wholeJob": self.whole_job,
            "masterAddr": self.leader_ip,
            "readyReplicas": self.ready,
            "recoverStrategy": self.strategy,
            "lastFault": dict(self.last_fault),
            "restartCauses": dict(self.causes),
            "handledRequests": dict(self.handled),
        }
        kept = {"conditions", "replicaStatuses", "restarts"}
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
        stable=stored.get("stable") is True,
        whole_job=stored.get("wholeJob") is True,
        leader_ip=str(stored.get("masterAddr") or ""),
        ready=str(stored.get("readyReplicas") or ""),
        strategy=str(stored.get("recoverStrategy") or ""),
        last_fault=mapping(stored.get("lastFault")),
        causes={key: _number(value) for key, value in mapping(stored.get("restartCauses")).items()},
        handled={key: _number(value) for key, value in mapping(stored.get("handledRequests")).items()},
    )


def _counts(stored: object) -> dict[str, dict[str, int]]:
    return {
        kind: {name: count for name, count in mapping(counts).items() if isinstance(count, int) and count}
        for kind, counts in mapping(stored).items()
    }


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def stamp(now: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> float | None:
    """The time that a stamp says, or None where it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
