"""An AscendJob as the rest of the package reads it: defaults filled in, replica types in a fixed order.

`read` takes a job that `validation` has passed. It never changes what it was given: pod templates stay the
very objects that the API server delivered, so that fields which we do not know survive untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from taskd.core.acjob import names

Json: TypeAlias = Mapping[str, Any]
T = TypeVar("T")

LEADERS: Final[Mapping[str, str]] = {"pytorch": "Master", "mindspore": "Scheduler", "tensorflow": "Chief"}
WORKER: Final = "Worker"


class Slot(NamedTuple):
    """The place of one pod: a lost pod comes back in the same place, with the same name and rank.

    A tuple and not a dataclass: places are keys, and a job may have thousands.
    """

    kind: str
    index: int  # type: ignore[assignment]  # hides a method of tuples that nobody needs here


@dataclass(frozen=True, slots=True)
class Replicas:
    """The pods of one type."""

    kind: str
    count: int
    restart_policy: str
    template: Json

    @property
    def label(self) -> str:
        """The type as it stands in names and labels."""
        return self.kind.lower()


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the PodGroup is given."""

    min_available: int | None = None
    min_resources: Json | None = None
    priority_class: str = ""
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A valid AscendJob."""

    namespace: str
    name: str
    uid: str
    generation: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    framework: str
    replicas: tuple[Replicas, ...]
    scheduler_name: str = ""
    scheduling: Scheduling = Scheduling()
    success_policy: str = ""
    clean_pod_policy: str = "Running"
    ttl_s: int | None = None
    deadline_s: int | None = None
    backoff_limit: int | None = None
    suspend: bool = False
    worked_out: dict[object, Any] = field(init=False, compare=False, repr=False, default_factory=dict)
    """What `once` keeps. A changed job is another one, and begins with nothing."""

    @property
    def key(self) -> str:
        """As messages call the job."""
        return f"{self.namespace}/{self.name}"

    @property
    def leader(self) -> Replicas | None:
        """The Master, Scheduler or Chief, where the job has one."""
        return next((replicas for replicas in self.replicas if replicas.kind != WORKER), None)

    @property
    def pod_group(self) -> str:
        """The name of its PodGroup."""
        return f"{self.name}-{self.uid}"

    @property
    def inference(self) -> bool:
        """Whether this is a part of an inference service rather than a training."""
        return bool(self.labels.get(names.APP)) and bool(self.labels.get(names.JOB_ID))

    @property
    def total(self) -> int:
        """How many pods the job has when it is whole."""
        return sum(replicas.count for replicas in self.replicas)

    def of_kind(self, kind: str) -> Replicas:
        """The replicas of that type; KeyError where the job has none."""
        for replicas in self.replicas:
            if replicas.kind == kind:
                return replicas
        raise KeyError(kind)

    def slots(self) -> Iterator[Slot]:
        """Every place, the leader's first."""
        for replicas in self.replicas:
            for index in range(replicas.count):
                yield Slot(replicas.kind, index)

    def pod_name(self, slot: Slot) -> str:
        """The name of the pod in that place."""
        return f"{self.name}-{slot.kind.lower()}-{slot.index}".replace("/", "-")

    def strategies(self) -> tuple[str, ...]:
        """The recovery strategies asked for, in the order written, blanks and repetitions left out."""
        listed = (part.strip() for part in self.annotations.get(names.RECOVER_STRATEGY, "").split(","))
        return tuple(dict.fromkeys(part for part in listed if part))

    def retry_times(self) -> int:
        """How often a failed pod restarts the job without further condition."""
        return max(0, int(self.labels.get(names.FAULT_RETRY_TIMES, "0").strip() or "0"))

    def restart_limit(self) -> int | None:
        """The number of restarts after which the job fails, or None for no limit."""
        limit = self.backoff_limit
        if limit is None:
            limit = self.retry_times()
        return limit if limit > 0 else None


def once(ask: Callable[[Job], T]) -> Callable[[Job], T]:
    """Have a question about a job alone answered once: a job never changes, and each look asks many.

    Nobody may change the answer.
    """

    @wraps(ask)
    def asked(job: Job) -> T:
        known = job.worked_out
        if ask not in known:
            known[ask] = ask(job)
        answer: T = known[ask]
        return answer

    return asked


_KINDS: Final = {kind.lower(): kind for kind in (*LEADERS.values(), WORKER)}


def slot_of(labels: Mapping[str, str]) -> Slot | None:
    """The place that a pod's labels name, if they name one."""
    kind = _KINDS.get(labels.get(names.REPLICA_TYPE, ""))
    index = labels.get(names.REPLICA_INDEX, "")
    return Slot(kind, int(index)) if kind is not None and index.isdecimal() else None


def mapping(value: object) -> Json:
    """The value if it is a map, else an empty one: absent and null mean the same in Kubernetes."""
    # Nearly all are dictionaries, and to ask whether one is a Mapping takes ten times as long.
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def read(raw: Json) -> Job:
    """The job of a raw object that has passed validation."""
    metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
    labels = mapping(metadata.get("labels"))
    framework = str(labels.get(names.FRAMEWORK, ""))
    policy = mapping(spec.get("runPolicy"))
    scheduling = mapping(policy.get("schedulingPolicy"))
    return Job(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation", 0)),
        labels=labels,
        annotations=mapping(metadata.get("annotations")),
        framework=framework,
        replicas=_replicas(framework, mapping(spec.get("replicaSpecs"))),
        scheduler_name=spec.get("schedulerName") or "",
        scheduling=Scheduling(
            min_available=scheduling.get("minAvailable"),
            min_resources=scheduling.get("minResources"),
            priority_class=scheduling.get("priorityClass") or "",
            queue=scheduling.get("queue") or "",
        ),
        success_policy=spec.get("successPolicy") or "",
        clean_pod_policy=policy.get("cleanPodPolicy") or "Running",
        ttl_s=policy.get("ttlSecondsAfterFinished"),
        deadline_s=policy.get("activeDeadlineSeconds"),
        backoff_limit=policy.get("backoffLimit"),
        suspend=bool(policy.get("suspend")),
    )


def proper_kind(framework: str, key: str) -> str:
    """The type that a key of replicaSpecs means; a key that means none is returned as it is."""
    for kind in (LEADERS.get(framework, WORKER), WORKER):
        if key.lower() == kind.lower():
            return kind
    return key


def _replicas(framework: str, specs: Json) -> tuple[Replicas, ...]:
    found = {}
    for key, content in specs.items():
        kind, spec = proper_kind(framework, key), mapping(content)
        count = spec.get("replicas")
        template = mapping(spec.get("template"))
        if kind != WORKER:
            template = _with_port(template)
        found[kind] = Replicas(
            kind=kind,
            count=1 if count is None else int(count),
            restart_policy=spec.get("restartPolicy") or "Never",
            template=template,
        )
    # The leader first: ranks begin with it, and so does creation.
    return tuple(sorted(found.values(), key=lambda replicas: replicas.kind == WORKER))


def main_container(template: Json) -> Json:
    """The container named `ascend`, else the first; empty where there is none."""
    containers = mapping(template.get("spec")).get("containers") or ()
    for container in containers:
        if container.get("name") == names.CONTAINER:
            return mapping(container)
    return mapping(containers[0]) if containers else {}


def _with_port(template: Json) -> Json:
    """The template with the port that the leader's Service needs, where the user wrote none."""
    main = main_container(template)
    ports = main.get("ports") or []
    if not main or any(port.get("name") == names.PORT_NAME for port in ports):
        return template
    added = {**main, "ports": [*ports, {"name": names.PORT_NAME, "containerPort": names.PORT}]}
    spec = mapping(template.get("spec"))
    containers = [added if container is main else container for container in spec["containers"]]
    return {**template, "spec": {**spec, "containers": containers}}
