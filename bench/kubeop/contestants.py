"""Who makes the pods: our operator, a bare client, Kubeflow's operator, JobSet. One at a time.

An operator is started for its turn and ended after it, since each one watches pods and would take core time
from the others' turns. It watches the namespace of the turn alone, and is idle and in step before the clock
begins.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from kubeop import jobs
from kubeop.ground import Ground, Json, Turn, environment, peak_mb, until
from taskd.testing.kube import Program, Request

CONTROLLER_MANAGER = "system:kube-controller-manager"
SETTLE_S = 1.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one turn of one contestant came to."""

    seconds: float
    writes: int
    conflicts: int
    pods: int
    by_kind: str
    peak_mb: float = 0.0
    core_s: float = 0.0
    """Core time of everything: control plane, operator, submitter."""
    unfinished: str = ""

    @property
    def writes_per_pod(self) -> float:
        """Return how many writes a pod cost."""
        return self.writes / self.pods


@dataclass(frozen=True, slots=True)
class Contestant:
    """An operator with its settings and its kind of job."""

    name: str
    program: str
    resource: str
    job: Callable[[str, str, int], Json]
    flags: tuple[str, ...] = ()
    gang_flags: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    """Users that write for it."""
    slow: bool = False
    """Takes minutes, so it has one turn where others have several."""

    def command(self, ground: Ground, namespace: str, *, gang: bool) -> list[str | Path]:
        """Return the command line for a namespace."""
        kubeconfig = ground.users[self.program].kubeconfig
        if self.program == "taskd":
            gang_flags = () if gang else ("--gang", "off")
            return [
                sys.executable, "-m", "taskd.cli.main", "controller", "--kubeconfig", str(kubeconfig),
                "--namespace", namespace, "--lease-namespace", namespace, "--listen", "127.0.0.1:0",
                *gang_flags, *self.flags,
            ]  # fmt: skip
        path = ground.programs[self.program]
        more = self.gang_flags if gang else ()
        return [path, f"--kubeconfig={kubeconfig}", f"--namespace={namespace}", *self.flags, *more]

    @contextmanager
    def running(self, ground: Ground, namespace: str, *, gang: bool) -> Iterator[Program]:
        """Run it for a namespace; ready when the block begins."""
        log = ground.home / f"{self.program}-{namespace}.log"
        program = Program(self.command(ground, namespace, gang=gang), log=log, environment=environment())
        program.start()
        try:
            sign = re.compile(r'"synced"' if self.program == "taskd" else r"Starting workers")
            until(lambda: _said(program, sign), 30)
            time.sleep(SETTLE_S)
            yield program
            program.check()
        finally:
            program.kill()


def _said(program: Program, sign: re.Pattern[str]) -> bool:
    program.check()
    return bool(sign.search(program.log.read_text(errors="replace")))


OURS = Contestant("taskd", "taskd", "ascendjobs", jobs.ascend_job)
KUBEFLOW = "training-operator"
DEFAULT = Contestant(
    "Kubeflow training-operator 1.8.1, its default limits",
    KUBEFLOW,
    "pytorchjobs",
    jobs.pytorch_job,
    gang_flags=("--gang",),
    slow=True,
)
RAISED = Contestant(
    "Kubeflow training-operator 1.8.1, limits raised to 1000, 8 threads",
    KUBEFLOW,
    "pytorchjobs",
    jobs.pytorch_job,
    flags=("--qps=1000", "--burst=1000", "--threads=8"),
    gang_flags=("--gang",),
)
JOB_SET = Contestant(
    "JobSet 0.10.1, limits raised to 1000",
    "jobset",
    "jobsets",
    jobs.job_set,
    flags=("--qps=1000", "--burst=1000"),
    helpers=(CONTROLLER_MANAGER,),
)
OTHERS = (RAISED, JOB_SET, DEFAULT)


def operator_turn(
    ground: Ground,
    who: Contestant,
    job_count: int,
    pods_each: int,
    *,
    gang: bool,
    limit_s: float = 240,
    stored: bool = False,
) -> Outcome:
    """Let an operator make the pods of some jobs.

    They are submitted at once, and the clock begins with the first; or they are ``stored`` while the operator
    is stopped, as they are before the bare client begins, and the clock begins when it goes on.
    """
    total = job_count * pods_each
    with ground.turn(who.program) as turn:
        names = [f"j{number}" for number in range(job_count)]
        lines = [[(who.resource, who.job(turn.namespace, name, pods_each))] for name in names]
        admitting = ground.admitting(turn.namespace) if gang else nullcontext()
        with admitting, who.running(ground, turn.namespace, gang=gang) as program:
            before, began = ground.core_seconds(program), 0.0
            if stored:
                program.pause()
            ground.create("submitter", turn.namespace, lines)
            if stored:
                time.sleep(SETTLE_S)
                before, began = ground.core_seconds(program), time.time()
                program.resume()
            unfinished = ""
            try:
                ground.wait_created(turn, "pods", total, limit_s)
            except TimeoutError as error:
                unfinished = str(error)
            spent = ground.core_seconds(program) - before
            # What follows the last pod (the status, as a rule) is counted as well.
            time.sleep(2.0)
            ground.settle(turn)
            peak = peak_mb(program)
        found = replace(outcome(ground, turn, who), peak_mb=peak, core_s=spent, unfinished=unfinished)
        return replace(found, seconds=turn.seconds_since(began)) if stored else found


def outcome(ground: Ground, turn: Turn, who: Contestant) -> Outcome:
    """Sum a turn up."""
    users = (ground.users[who.program].name, *who.helpers)
    # The controller-manager looks after Services and the like for everybody: only what is about jobs and
    # pods is JobSet's. A lease is renewed whatever happens.
    mine = {"pods", "jobs", "events"}
    writes = [
        request
        for request in turn.writes(*users)
        if request.resource != "leases" and (request.user != CONTROLLER_MANAGER or request.resource in mine)
    ]
    return Outcome(
        seconds=turn.seconds(who.resource),
        writes=len(writes),
        conflicts=sum(request.code == 409 for request in writes),
        pods=len(turn.created("pods")),
        by_kind=", ".join(kinds(writes)),
    )


def kinds(writes: Sequence[Request]) -> Iterator[str]:
    """Say what the writes were, most frequent first."""
    counts: dict[str, int] = {}
    for request in writes:
        what = request.resource + (f"/{request.subresource}" if request.subresource else "")
        counts[f"{request.verb} {what}"] = counts.get(f"{request.verb} {what}", 0) + 1
    for what, count in sorted(counts.items(), key=lambda entry: -entry[1]):
        yield f"{count} {what}"


@dataclass(frozen=True, slots=True)
class Floor:
    """What the bare client needed."""

    seconds: float
    core_s: float
    submitting_s: float
    """What it took to submit the jobs, before."""
    submitting_core_s: float


def bare_turn(ground: Ground, job_count: int, pods_each: int, *, gang: bool) -> Floor:
    """Let the bare client make the same objects.

    The jobs themselves are stored beforehand, with nobody to look after them, so that what is made has an
    owner and is not collected as garbage.
    """
    with ground.turn("bare") as turn:
        names = [f"j{number}" for number in range(job_count)]
        raw = [jobs.ascend_job(turn.namespace, name, pods_each) for name in names]
        before = ground.core_seconds()
        ground.create("submitter", turn.namespace, [[("ascendjobs", job)] for job in raw])
        submitting_core_s = ground.core_seconds() - before
        stored = ground.kube.api.items(jobs.JOBS.format(turn.namespace))
        about = {"apiVersion": raw[0]["apiVersion"], "kind": raw[0]["kind"]}
        made = [jobs.objects_of({**about, **job}, gang=gang) for job in stored]
        time.sleep(SETTLE_S)
        admitting = ground.admitting(turn.namespace) if gang else nullcontext()
        before = ground.core_seconds()
        with admitting:
            ground.create("bare", turn.namespace, made)
        spent = ground.core_seconds() - before
        ground.settle(turn)
        assert len(turn.created("pods")) == job_count * pods_each
        return Floor(
            seconds=turn.seconds("podgroups" if gang else "services"),
            core_s=spent,
            submitting_s=turn.seconds("ascendjobs", "ascendjobs"),
            submitting_core_s=submitting_core_s,
        )
