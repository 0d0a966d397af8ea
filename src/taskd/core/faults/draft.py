"""The next state while it is being made: maps are copied once, however many events are taken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from taskd.core.faults.events import Changes, Note, PodMark
from taskd.core.faults.state import HeldPublic, JobRecord, NodeRecord, Occurrence, PublicKey, State


class Draft:
    """What `observe` works on; nothing outside ever sees it."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.before = state
        self.now = now
        self.nodes: dict[str, NodeRecord] = dict(state.nodes)
        self.jobs: dict[str, JobRecord] = dict(state.jobs)
        self.users: dict[str, frozenset[str]] = dict(state.users)
        self.history: dict[str, tuple[Occurrence, ...]] = dict(state.history)
        self.early: dict[tuple[str, PublicKey], float] = dict(state.early)
        self.node_wakes: dict[str, float] = dict(state.node_wakes)
        self.job_wakes: dict[str, float] = dict(state.job_wakes)
        self.public_count = state.public_count
        self.touched: set[str] = set()
        self.touched_jobs: set[str] = set()
        self.news: set[str] = set()
        """Jobs with a fault that was not there before, even if it looks like one that was."""
        self.gone: list[str] = []
        self.separations = False
        self.public = False
        self.notes: list[Note] = []

    # ------------------------------------------------------------------------------------------ changing

    def node(self, name: str) -> NodeRecord:
        """What is known of the node; a new record where nothing is."""
        return self.nodes.get(name) or NodeRecord(name)

    def put(self, record: NodeRecord) -> None:
        """Change what is known of a node."""
        self.nodes[record.name] = record
        self.touched.add(record.name)

    def touch(self, nodes: Iterable[str]) -> None:
        """Have nodes looked at again."""
        self.touched.update(nodes)

    def touch_due(self) -> None:
        """Have everything looked at whose moment has come."""
        self.touched |= {name for name, moment in self.node_wakes.items() if moment <= self.now}
        self.touched_jobs |= {job_id for job_id, moment in self.job_wakes.items() if moment <= self.now}
        for key in [key for key, until in self.early.items() if until <= self.now]:
            del self.early[key]

    def report(
        self,
        job_id: str,
        *,
        retry_at: float | None = None,
        retried_at: float | None = None,
        gave_up_at: float | None = None,
    ) -> None:
        """Note what was said of a job's recovery."""
        job = self.jobs.get(job_id)
        if job is None:
            self.notes.append(Note(job_id, "a report on a job that is not known", refused=True))
            return
        self.jobs[job_id] = replace(
            job,
            retry_at=job.retry_at if retry_at is None else retry_at,
            retried_at=job.retried_at if retried_at is None else retried_at,
            gave_up_at=job.gave_up_at if gave_up_at is None else gave_up_at,
        )
        self.touched |= job.sight.nodes

    def hold_public(self, node: str, key: PublicKey, held: HeldPublic | None) -> None:
        """Set or remove a public fault of a node."""
        record = self.node(node)
        public = dict(record.public)
        known = public.pop(key, None) is not None
        if held is not None:
            public[key] = held
        self.public_count += (held is not None) - known
        self.public = True
        self.put(replace(record, public=public))

    def job_records(self, node: str) -> tuple[JobRecord, ...]:
        """The jobs on a node, in the order of their ids."""
        return tuple(self.jobs[job_id] for job_id in sorted(self.users.get(node, ())) if job_id in self.jobs)

    def note(self, about: str, texts: Iterable[str]) -> None:
        """Say something that was strange but used."""
        self.notes += [Note(about, text) for text in texts]

    def refuse(self, about: str, reason: str) -> None:
        """Say that something is not used."""
        self.notes.append(Note(about, reason, refused=True))

    # --------------------------------------------------------------------------------------------- the end

    def finish(self) -> tuple[State, Changes]:
        """The next state, and how it differs from the one before."""
        for name in self.touched:
            record = self.nodes.get(name)
            if record is not None and record.empty and not self.users.get(name):
                del self.nodes[name]
                self.node_wakes.pop(name, None)
        state = replace(
            self.state,
            nodes=self.nodes,
            jobs=self.jobs,
            users=self.users,
            history=self.history,
            early=self.early,
            node_wakes=self.node_wakes,
            job_wakes=self.job_wakes,
            public_count=self.public_count,
        )
        told, marks = [], []
        for job_id in sorted(self.touched_jobs | self.news):
            job, old = self.jobs.get(job_id), self.before.jobs.get(job_id)
            if job is None:
                continue
            if old is None or old.view != job.view or job_id in self.news:
                told.append(job.view)
            for pod in job.sight.pods:
                mark = job.marks.get(pod.uid)
                if mark is not None and (old is None or old.marks.get(pod.uid) is not mark):
                    marks.append(PodMark(job_id, pod.name, pod.uid, mark))
        return state, Changes(
            tuple(told),
            tuple(sorted(set(self.gone) - self.jobs.keys())),
            tuple(sorted(self.touched)),
            tuple(marks),
            self.separations,
            self.public,
            tuple(self.notes),
        )
