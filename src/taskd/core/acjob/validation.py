"""What is wrong with a job, all of it at once, in a fixed order, each with the path of the field.

A job with problems is accepted by the API server and told here, in its own status, so that whoever submitted
it reads the reason where they look for it. Codes and sentences of the reference are kept; what it let through
to fail later (a restart policy that no kubelet knows, a strategy that is misspelt) has sentences of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from taskd.core.acjob import names
from taskd.core.acjob.devices import VENDORS, requested, whole_number
from taskd.core.acjob.job import LEADERS, WORKER, Json, main_container, mapping

RESTART_POLICIES: Final = ("Always", "OnFailure", "Never", "ExitCode")
CLEAN_POLICIES: Final = ("All", "Running", "None")
LABEL_LIMIT: Final = 63
DNS_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
ANNOTATION_PATH: Final = re.compile(r"metadata\.annotations\['([^']+)'\]")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that must be mended before the job can run."""

    code: str
    message: str
    path: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message} ({self.path})"


def validate(raw: Json, *, missing_queue: str | None = None) -> tuple[Problem, ...]:
    """Every problem of the job.

    `missing_queue` is the queue that the scheduler was asked for and does not have; a queue that could not be
    looked up is not a problem of the job and is None here.
    """
    return tuple(_problems(raw, missing_queue))


def summary(problems: Sequence[Problem]) -> str:
    """The problems as the message of a condition."""
    return "; ".join(map(str, problems))


def _problems(raw: Json, missing_queue: str | None) -> Iterator[Problem]:
    metadata, spec = mapping(raw.get("metadata")), mapping(raw.get("spec"))
    labels, annotations = mapping(metadata.get("labels")), mapping(metadata.get("annotations"))
    name = str(metadata.get("name", ""))
    yield from _labels(name, labels)
    yield from _annotations(annotations)
    yield from _policies(spec, missing_queue)
    framework = labels.get(names.FRAMEWORK)
    if framework is None:
        yield Problem(
            "InvalidFramework",
            "framework label is not set, please set label framework as one of <pytorch,mindspore,tensorflow>",
            "metadata.labels[framework]",
        )
    elif framework not in LEADERS:
        yield Problem(
            "InvalidFramework",
            f"framework label<{framework}> is not in map[mindspore:{{}} pytorch:{{}} tensorflow:{{}}]",
            "metadata.labels[framework]",
        )
    # Where the framework is not known, all is said that holds for every one.
    known = str(framework) if framework in LEADERS else None
    yield from _replica_specs(name, known, mapping(spec.get("replicaSpecs")))
    yield from _minimum(known, spec)
    yield from _nobody(known, spec)


def _labels(name: str, labels: Json) -> Iterator[Problem]:
    if names.SCALING_RULE in labels:
        if names.SCALING_GROUP not in labels:
            yield Problem(
                "InvalidScalingConfig",
                f"job {name} has no group name, "
                "please set label of mind-cluster/group-name=<the group of job>",
                f"metadata.labels[{names.SCALING_GROUP}]",
            )
        if names.JOB_ID not in labels:
            yield Problem(
                "InvalidScalingConfig",
                f"job {name} has no jobID, please set label of jobID=<the jobID of job>",
                f"metadata.labels[{names.JOB_ID}]",
            )
    scaleout = str(labels.get(names.SCALEOUT_TYPE, "")).strip()
    if scaleout and scaleout.upper() not in {"ROCE", "UBOE"}:
        yield Problem(
            "InvalidScaleOutConfig",
            "the value of label scaleout-type is invalid, which should be ROCE or UBOE",
            f"metadata.labels[{names.SCALEOUT_TYPE}]",
        )
    retries = str(labels.get(names.FAULT_RETRY_TIMES, "0")).strip()
    if retries and not re.fullmatch(r"[-+]?\d{1,9}", retries):
        yield Problem(
            "InvalidRetryTimes",
            f"the value of label fault-retry-times must be a whole number, but got {retries!r}",
            f"metadata.labels[{names.FAULT_RETRY_TIMES}]",
        )


def _annotations(annotations: Json) -> Iterator[Problem]:
    listed = [part.strip() for part in str(annotations.get(names.RECOVER_STRATEGY, "")).split(",")]
    unknown = [part for part in listed if part and part not in names.STRATEGIES]
    if unknown:
        yield Problem(
            "InvalidRecoverStrategy",
            f"recover-strategy knows {', '.join(names.STRATEGIES)}, but got {', '.join(map(repr, unknown))}",
            f"metadata.annotations[{names.RECOVER_STRATEGY}]",
        )
    processes = str(annotations.get(names.PROCESSES_PER_POD, "1"))
    if not re.fullmatch(r"[1-9]\d{0,4}", processes):
        yield Problem(
            "InvalidProcessesPerPod",
            f"the number of processes per pod must be a whole number from 1, but got {processes!r}",
            f"metadata.annotations[{names.PROCESSES_PER_POD}]",
        )
    standbys = str(annotations.get(names.STANDBY_PODS, "0"))
    if not re.fullmatch(r"\d{1,4}", standbys) or int(standbys) > names.MAX_STANDBYS:
        yield Problem(
            "InvalidStandbyPods",
            f"the number of standby pods must be a whole number from 0 to {names.MAX_STANDBYS}, "
            f"but got {standbys!r}",
            f"metadata.annotations[{names.STANDBY_PODS}]",
        )


def _policies(spec: Json, missing_queue: str | None) -> Iterator[Problem]:
    if spec.get("successPolicy") not in {None, "", "AllWorkers"}:
        yield Problem(
            "InvalidSuccessPolicy",
            'job success policy is invalid, it must be one of <"", AllWorkers>',
            "spec.successPolicy",
        )
    policy = mapping(spec.get("runPolicy"))
    if missing_queue is not None:
        yield Problem(
            "InvalidQueue",
            f"check queue<{missing_queue}> failed, err: it is not found, maybe it is not create",
            "spec.runPolicy.schedulingPolicy.queue",
        )
    if policy.get("cleanPodPolicy") not in {None, "", *CLEAN_POLICIES}:
        yield Problem(
            "InvalidCleanPodPolicy",
            f"cleanPodPolicy must be one of {', '.join(CLEAN_POLICIES)}, "
            f"but got {policy['cleanPodPolicy']!r}",
            "spec.runPolicy.cleanPodPolicy",
        )
    for field in ("ttlSecondsAfterFinished", "activeDeadlineSeconds"):
        value = policy.get(field)
        if isinstance(value, int) and value < 0:
            yield Problem(
                "InvalidRunPolicy", f"{field} can not be negative, but got {value}", f"spec.runPolicy.{field}"
            )


def _roles(framework: str | None) -> tuple[str, ...]:
    """The roles that the framework has, the leader's first; those of all where it is not known."""
    return (*([LEADERS[framework]] if framework else sorted(LEADERS.values())), WORKER)


def _kind(framework: str | None, key: str) -> str:
    """The role that a key of replicaSpecs means; a key that means none is returned as it is."""
    return next((role for role in _roles(framework) if role.lower() == key.lower()), key)


def _ordered(framework: str | None, specs: Json) -> list[str]:
    """The keys of replicaSpecs, the leader's first, so that errors come in the same order every time."""
    rank = {role: at for at, role in enumerate(_roles(framework))}
    return sorted(specs, key=lambda key: (rank.get(_kind(framework, key), len(rank)), key))


def _replica_specs(name: str, framework: str | None, specs: Json) -> Iterator[Problem]:
    roles = _roles(framework)
    seen: dict[str, str] = {}
    for key in _ordered(framework, specs):
        path = f"spec.replicaSpecs.{key}"
        kind = _kind(framework, key)
        if kind not in roles:
            yield Problem(
                "InvalidReplicaType", f"replicaType is {key} but must be one of [{' '.join(roles)}]", path
            )
        elif kind in seen:
            yield Problem("InvalidReplicaType", f"replicaType {key} is the same as {seen[kind]}", path)
        seen.setdefault(kind, key)
        spec = specs[key]
        if spec is None:
            yield Problem(
                "InvalidReplicaSpec", f"{kind} replicaSpec is not set, please modify your job", path
            )
            continue
        leads = kind in roles and kind != WORKER
        yield from _replica_spec(kind, path, mapping(spec), leads=leads)
        yield from _names(name, kind, path, mapping(spec), leads=leads)
    if framework is not None and roles[0] not in seen:
        yield from _without_leader(framework, specs, seen)


def _without_leader(framework: str, specs: Json, seen: dict[str, str]) -> Iterator[Problem]:
    if framework != "mindspore":
        yield Problem(
            "InvalidReplicaType",
            "replicaType is not valid: there need 1 leader replicaType, "
            "Master for pytorch, Chief of tensorflow",
            "spec.replicaSpecs",
        )
        return
    if WORKER not in seen:
        yield Problem(
            "InvalidReplicaType",
            "replicaType is not valid: there need a Scheduler or a Worker",
            "spec.replicaSpecs",
        )
        return
    spec = mapping(specs[seen[WORKER]])
    request = requested(mapping(spec.get("template")))
    replicas = spec.get("replicas")
    total = (request.count if request else 0) * (1 if replicas is None else int(replicas))
    if total > 1:
        yield Problem(
            "InvalidReplicaSpec",
            "replicaSpec is not valid: when scheduler not found, the req num must be 1",
            f"spec.replicaSpecs.{seen[WORKER]}",
        )


def _replica_spec(kind: str, path: str, spec: Json, *, leads: bool) -> Iterator[Problem]:
    replicas = spec.get("replicas")
    if isinstance(replicas, int):
        if replicas < 0:
            yield Problem(
                "InvalidReplicaSpec",
                f"{kind} replicaSpec is not valid: replicas can not be negative num, but got {replicas}",
                f"{path}.replicas",
            )
        elif replicas > names.MAX_REPLICAS:
            yield Problem(
                "InvalidReplicaSpec",
                f"{kind} replicaSpec is not valid: replicas can not be larger than {names.MAX_REPLICAS}, "
                f"but got {replicas}",
                f"{path}.replicas",
            )
        elif leads and replicas != 1:
            yield Problem(
                "InvalidReplicaSpec",
                f"{kind} replicaSpec is not valid, the replicas must be only 1",
                f"{path}.replicas",
            )
    policy = spec.get("restartPolicy")
    if policy and policy not in RESTART_POLICIES:
        yield Problem(
            "InvalidReplicaSpec",
            f"{kind} replicaSpec is not valid: restartPolicy must be one of {', '.join(RESTART_POLICIES)}, "
            f"but got {policy!r}",
            f"{path}.restartPolicy",
        )
    yield from _containers(kind, f"{path}.template.spec", mapping(spec.get("template")))


def _containers(kind: str, path: str, template: Json) -> Iterator[Problem]:
    containers = mapping(template.get("spec")).get("containers") or ()
    if not containers:
        yield Problem(
            "InvalidReplicaSpec",
            f"{kind} replicaSpec is not valid: containers is undefined",
            f"{path}.containers",
        )
        return
    main = main_container(template)
    if main.get("name") != names.CONTAINER:
        yield Problem(
            "InvalidContainer",
            f"{kind} replicaSpec is not valid: There is no container named {names.CONTAINER}",
            f"{path}.containers",
        )
        return
    here = f"{path}.containers[{names.CONTAINER}]"
    if not main.get("image"):
        yield Problem(
            "InvalidContainer",
            f"{kind} replicaSpec is not valid: Image is undefined in the container of {names.CONTAINER}",
            f"{here}.image",
        )
    yield from _devices(kind, here, template, main)


def _devices(kind: str, path: str, template: Json, main: Json) -> Iterator[Problem]:
    resources = mapping(main.get("resources"))
    requests, limits = mapping(resources.get("requests")), mapping(resources.get("limits"))
    for resource in sorted({*requests, *limits}):
        if not resource.startswith(VENDORS):
            continue
        amounts = [amounts[resource] for amounts in (requests, limits) if resource in amounts]
        if any(not str(amount).strip().isdigit() for amount in amounts):
            yield Problem(
                "InvalidResources",
                f"{kind} replicaSpec is not valid: {resource} must be a whole number, but got {amounts[0]!r}",
                f"{path}.resources",
            )
        elif len({whole_number(amount) for amount in amounts}) > 1:
            yield Problem(
                "InvalidResources",
                f"{kind} replicaSpec is not valid: requests and limits of {resource} must be the same, "
                f"but got {requests[resource]} and {limits[resource]}",
                f"{path}.resources",
            )
    for entry in main.get("env") or ():
        if entry.get("name") != "ASCEND_VISIBLE_DEVICES":
            continue
        source = mapping(mapping(entry.get("valueFrom")).get("fieldRef")).get("fieldPath", "")
        match = ANNOTATION_PATH.fullmatch(str(source))
        request = requested(template)
        wanted = request.resource if request else None
        if match and match[1].startswith("huawei.com/") and match[1] != wanted:
            yield Problem(
                "InvalidVisibleDevices",
                f"{kind} replicaSpec is not valid: ASCEND_VISIBLE_DEVICES is taken from the annotation "
                f"{match[1]}, but the resource that is requested is {wanted or 'none'}; "
                "they must be the same, or the variable left out",
                f"{path}.env[ASCEND_VISIBLE_DEVICES]",
            )


def _names(name: str, kind: str, path: str, spec: Json, *, leads: bool) -> Iterator[Problem]:
    """The job's name ends in labels and in the names of pods and Services, which have limits."""
    replicas = spec.get("replicas")
    last = max(0, (1 if not isinstance(replicas, int) else replicas) - 1)
    longest = f"{name}-{kind.lower()}-{last}"
    if leads and (len(longest) > LABEL_LIMIT or not DNS_LABEL.fullmatch(longest)):
        yield Problem(
            "InvalidName",
            f"the Service {longest} needs a name of at most {LABEL_LIMIT} letters, digits and dashes "
            "that begins with a letter",
            "metadata.name",
        )
    elif not leads and len(name) > LABEL_LIMIT:
        yield Problem(
            "InvalidName", f"the name has {len(name)} characters; labels carry at most {LABEL_LIMIT}", path
        )


def _nobody(framework: str | None, spec: Json) -> Iterator[Problem]:
    """A job in which nobody works would have succeeded before it began."""
    specs = {_kind(framework, key): mapping(of) for key, of in mapping(spec.get("replicaSpecs")).items()}
    if not specs and framework is not None:
        return  # that there is no leader is said already
    if all(replicas.get("replicas") == 0 for replicas in specs.values()):
        yield Problem(
            "InvalidReplicaSpec", "replicaSpec is not valid: there need to be a pod", "spec.replicaSpecs"
        )
    elif spec.get("successPolicy") == "AllWorkers" and specs.get(WORKER, {}).get("replicas") == 0:
        asked = {kind: requested(mapping(replicas.get("template"))) for kind, replicas in specs.items()}
        if any(asked.values()):
            computes = any(asked.get(leader) for leader in _roles(framework)[:-1])
        else:
            computes = framework != "mindspore"
        if not computes:
            yield Problem(
                "InvalidSuccessPolicy",
                "job success policy is invalid: there is no Worker, and nobody else computes",
                "spec.successPolicy",
            )


def _minimum(framework: str | None, spec: Json) -> Iterator[Problem]:
    policy = mapping(mapping(spec.get("runPolicy")).get("schedulingPolicy"))
    minimum = policy.get("minAvailable")
    if not isinstance(minimum, int):
        return
    counts = [mapping(replicas).get("replicas") for replicas in mapping(spec.get("replicaSpecs")).values()]
    total = sum(max(0, count) if isinstance(count, int) else 1 for count in counts)
    if minimum < 0 or minimum > total:
        yield Problem(
            "InvalidMinAvailable",
            f"minAvailable is {minimum}, but the {f'{framework} ' if framework else ''}job has {total} pods",
            "spec.runPolicy.schedulingPolicy.minAvailable",
        )
