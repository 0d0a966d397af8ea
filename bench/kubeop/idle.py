"""What the controller does while nothing happens."""

import time

from recovery.figures import Section
from table import tell

from kubeop import jobs
from kubeop.contestants import OURS, kinds
from kubeop.ground import Ground, Turn, core_seconds, now_mb, until
from taskd.testing.kube import Kubelets, Nodes, Program, VolcanoStandIn

CORE_LIMIT = 2.0
NODES = 8
SMALL = 2
QUIET_S = 5.0


def measure_idle(ground: Ground, *, running: int, waiting: int, seconds: float) -> Section:
    """Watch the controller do nothing, with jobs that run and with jobs that wait for their turn."""
    section = Section("idle")
    _running(ground, section, running, seconds)
    _waiting(ground, section, waiting, seconds)
    section.note(f"watched for {seconds:g} s each; the Lease is renewed all the while and counted apart")
    return section


def _running(ground: Ground, section: Section, count: int, seconds: float) -> None:
    name = f"idle with {count} running jobs"
    with Kubelets(ground.kube):
        nodes = Nodes(ground.kube)
        places = nodes.add(NODES, capacity={})
        with ground.turn("idle") as turn, OURS.running(ground, turn.namespace, gang=False) as program:
            # Placed by name, so that no scheduler is needed; the kubelets do the rest.
            lines = [
                [("ascendjobs", jobs.ascend_job(turn.namespace, f"j{n}", SMALL, node=places[n % NODES]))]
                for n in range(count)
            ]
            ground.create("submitter", turn.namespace, lines)
            _wait_states(ground, turn.namespace, "Running", "", count)
            _watch(ground, section, name, turn, program, seconds)
        nodes.remove_all()


def _waiting(ground: Ground, section: Section, count: int, seconds: float) -> None:
    name = f"idle with {count} jobs that wait for their PodGroup"
    with (
        VolcanoStandIn(ground.kube),
        ground.turn("wait") as turn,
        OURS.running(ground, turn.namespace, gang=True) as program,
    ):
        # There is no node at all, so the scheduler says of every group that it lacks room.
        lines = [[("ascendjobs", jobs.ascend_job(turn.namespace, f"j{n}", 4))] for n in range(count)]
        ground.create("submitter", turn.namespace, lines)
        _wait_states(ground, turn.namespace, "Created", "PodGroupPending", count)
        assert not ground.kube.api.items(f"/api/v1/namespaces/{turn.namespace}/pods")
        _watch(ground, section, name, turn, program, seconds)


def _wait_states(ground: Ground, namespace: str, state: str, reason: str, count: int) -> None:
    def reached() -> bool:
        items = ground.kube.api.items(jobs.JOBS.format(namespace))
        last = [((job.get("status") or {}).get("conditions") or [{}])[-1] for job in items]
        there = sum(each.get("type") == state and reason in {"", each.get("reason")} for each in last)
        return there == count

    until(reached, 240, every_s=1.0)


def _watch(ground: Ground, section: Section, name: str, turn: Turn, program: Program, seconds: float) -> None:
    user = ground.users["taskd"].name

    def quiet() -> bool:
        """Tell whether the Events of the start, which are sent one after another, are out."""
        ground.settle(turn)
        turn.requests.clear()
        time.sleep(QUIET_S)
        ground.settle(turn)
        return all(each.resource == "leases" for each in turn.writes(user))

    until(quiet, 120, every_s=0.1)
    tell(f"{name}: watching for {seconds:g} s")
    turn.requests.clear()
    used, began = core_seconds(program), time.monotonic()
    time.sleep(seconds)
    share = 100 * (core_seconds(program) - used) / (time.monotonic() - began)
    ground.settle(turn)
    writes = turn.writes(user)
    leases = [each for each in writes if each.resource == "leases"]
    others = [each for each in writes if each.resource != "leases"]
    section.add(f"{name}: writes", [float(len(others))], "", 0.0)
    section.add(f"{name}: share of a core", [share], "%", CORE_LIMIT)
    section.add(f"{name}: renewals of the Lease", [float(len(leases))], "")
    section.add(f"{name}: memory", [now_mb(program)], "MB")
    if others:
        section.note(f"{name} wrote {', '.join(kinds(others))}")
