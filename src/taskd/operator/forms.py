"""What a job asks for, worked out once for each form of it.

A look at a job needs its problems, its reading, the mark of its PodGroup and the form of its Service
several times over, and all of it follows from what the user wrote. A job is the same as before as long as its
generation (which counts changes of the spec), its labels and its annotations are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.core.acjob import job as jobs
from taskd.core.acjob import names, services, validation
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.quantities import QuantityError
from taskd.core.acjob.validation import Problem
from taskd.kube.objects import Json, Service
from taskd.operator.carrier import pod_group_manifest

_Port = tuple[str, int, str, int | str | None]


@dataclass(slots=True)
class Form:
    """One form of one job."""

    generation: object
    labels: Mapping[str, str] | None
    annotations: Mapping[str, str] | None
    problems: tuple[Problem, ...]
    job: Job | None
    """None where it has problems: it may not be readable."""
    _marks: dict[tuple[bool, frozenset[Slot]], str] = field(default_factory=dict)
    _service: tuple[Mapping[str, str], frozenset[_Port]] | None = None

    def group_mark(self, job: Job, *, paused: bool, gone: frozenset[Slot]) -> str:
        """The mark that the job's PodGroup has when it is up to date; empty where none can be made."""
        state = paused, gone
        if state not in self._marks:
            try:
                manifest = pod_group_manifest(job, paused=paused, gone=gone)
                self._marks[state] = manifest["metadata"]["annotations"][names.APPLIED]
            except QuantityError:
                self._marks[state] = ""
        return self._marks[state]

    def is_current(self, job: Job, service: Service) -> bool:
        """Whether the leader's Service leads where it should, whoever has touched it.

        A port that somebody added harms nothing, and applying ours does not take it away.
        """
        if self._service is None:
            wanted = services.leader_service(job)
            spec = wanted["spec"] if wanted else {"selector": {}, "ports": ()}
            ports = frozenset(
                (port["name"], port["port"], port["protocol"], port["targetPort"]) for port in spec["ports"]
            )
            self._service = spec["selector"], ports
        selector, ports = self._service
        there = {(port.name, port.port, port.protocol, port.target_port) for port in service.spec.ports}
        return selector == service.spec.selector and ports <= there


@dataclass(slots=True)
class Forms:
    """The newest form of every job, by UID."""

    _known: dict[str, Form] = field(default_factory=dict)

    def of(self, raw: Json) -> Form:
        """The form of the job as it is now."""
        metadata = raw["metadata"]
        generation = metadata.get("generation")
        labels, annotations = metadata.get("labels"), metadata.get("annotations")
        form = self._known.get(metadata["uid"])
        if (
            form is None
            or form.generation != generation
            or form.labels != labels
            or form.annotations != annotations
        ):
            problems = validation.validate(raw)
            job = None if problems else jobs.read(raw)
            form = Form(generation, labels, annotations, problems, job)
            self._known[metadata["uid"]] = form
        return form

    def forget(self, alive: set[str]) -> None:
        """Keep those of these jobs only."""
        for uid in [uid for uid in self._known if uid not in alive]:
            del self._known[uid]
