"""The controller is killed at a write; whoever comes next brings the job to the same end.

For each history of a job the undisturbed end is recorded; then the history is told again and again, and each
time the controller is killed (SIGKILL) at another of its writes: once before the write reaches the API
server, once after it was done but before the controller learns so. What is left at the end (status, pods with
their generations and ranks, Services, ConfigMaps, Secrets, PodGroups) must be what the undisturbed history
left, times and addresses aside.

`make test` strikes at one write of each history, `make kills` at all of them.

There is one controller at a time, so it runs without a Lease: waiting for one to expire would be most of the
time. That two never act at once is shown elsewhere.
"""

from __future__ import annotations

import difflib
import json
import os
import pprint
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from taskd.testing.kube.nodes import HOLD
from tests.kube.operator.proxy import AFTER, BEFORE, Proxy
from tests.kube.operator.site import GROUPS, JOBS, Controller, Json, Site, until
from tests.kube.operator.small import annotate_pod, delete_pod, small, uid, wait_replaced

LONG_S = 60.0
DOOMED = {"fate": "lost"}


class Immortal:
    """A controller behind a proxy; whenever it is killed another one is started."""

    def __init__(self, kube: Cluster, namespace: str, home: Path, *flags: str) -> None:
        self.proxy = Proxy(kube, home)
        self.controller = Controller(
            self.proxy.kubeconfig, namespace, home / "controller.log", "--no-leader-elect", *flags
        )
        self.kills = 0
        self._ending = False
        self._died = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self.proxy.kill = self._kill

    def _kill(self) -> None:
        self.kills += 1
        process = self.controller.process
        if process is not None:
            process.kill()
        self._died.set()

    def _keep(self) -> None:
        while not self._ending:
            if self._died.wait(0.2) and not self._ending:
                self._died.clear()
                if self.controller.process is not None:
                    self.controller.process.wait()
                self.controller.start()

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        self.controller.start()
        self._keeper.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._ending = True
        self._keeper.join(30)
        if self.controller.process is not None:
            self.controller.kill()
        self.proxy.__exit__(None, None, None)
        assert "look_broke" not in self.controller.log.read_text()


@pytest.fixture
def immortal(site: Site, tmp_path: Path, name: str) -> Iterator[Immortal]:
    """A controller that comes back."""
    with Immortal(site.kube, site.namespace, tmp_path, *HISTORIES[name].flags) as found:
        yield found


@dataclass
class Stage:
    """Where a history takes place."""

    site: Site
    nodes: Nodes
    job: str

    def settled(self, restarts: int = 0) -> None:
        """Wait until the job runs whole after so many restarts."""

        def there() -> bool:
            status = self.site.status(self.job)
            return (
                status.get("restarts") == restarts
                and bool(status.get("stable"))
                and self.site.state(self.job) == "Running"
            )

        until(there, LONG_S, lambda: f"{self.site.status(self.job)}")

    def fail(self, pod: str, code: int) -> None:
        self.nodes.wait_phase(self.site.namespace, f"{self.job}-{pod}", "Running")
        self.nodes.exit(self.site.namespace, f"{self.job}-{pod}", code)

    def suspend(self, *, wish: bool) -> None:
        self.site.patch(self.job, {"spec": {"runPolicy": {"suspend": wish}}})


def lose_a_pod(stage: Stage) -> None:
    delete_pod(stage.site, f"{stage.job}-worker-0")
    stage.settled(1)


def fail_a_pod(stage: Stage) -> None:
    stage.fail("worker-0", 1)
    stage.settled(1)


def end_a_pod_by_a_signal(stage: Stage) -> None:
    stage.fail("worker-0", 137)
    stage.settled(1)


def suspend_and_resume(stage: Stage) -> None:
    stage.suspend(wish=True)
    stage.site.wait_state(stage.job, "Created", "JobSuspended", limit_s=LONG_S)
    until(lambda: not stage.site.pods(stage.job), LONG_S)
    stage.suspend(wish=False)
    stage.settled(0)


def fail_for_good(stage: Stage) -> None:
    stage.fail("worker-0", 1)
    stage.site.wait_state(stage.job, "Failed", "JobFailed", limit_s=LONG_S)
    until(lambda: not stage.site.pods(stage.job), LONG_S)


def switch_a_pod(stage: Stage) -> None:
    site, source = stage.site, f"{stage.job}-worker-0"
    annotate_pod(site, source, inHotSwitchFlow="true", needOperatorOpe="create")
    until(lambda: "backupNewPodName" in site.pod(source)["metadata"]["annotations"], LONG_S)
    standby = site.pod(source)["metadata"]["annotations"]["backupNewPodName"]
    stage.nodes.wait_phase(site.namespace, standby, "Running", timeout_s=LONG_S)
    annotate_pod(site, source, needVolcanoOpe="delete")
    until(lambda: source not in site.pods(stage.job), LONG_S)
    until(lambda: "podType" not in site.pod(standby)["metadata"]["annotations"], LONG_S)
    stage.settled(0)


def lose_pods_too_often(stage: Stage) -> None:
    lose_a_pod(stage)
    delete_pod(stage.site, f"{stage.job}-worker-0")
    stage.site.wait_state(stage.job, "Failed", "JobFailed", limit_s=LONG_S)


def lose_a_node(stage: Stage) -> None:
    stage.nodes.remove(stage.site.pod(f"{stage.job}-master-0")["spec"]["nodeName"])
    stage.settled(1)


def make_it_larger(stage: Stage) -> None:
    stage.site.patch(stage.job, {"spec": {"replicaSpecs": {"Worker": {"replicas": 2}}}})
    stage.settled(1)


def ask_for_a_move(stage: Stage) -> None:
    request = {"id": "r1", "pods": [f"{stage.job}-worker-0"], "reason": "device 3 is faulty"}
    path = f"{JOBS.format(stage.site.namespace)}/{stage.job}/status"
    stage.site.kube.api.patch(path, {"status": {"requests": [request]}})
    stage.settled(1)


def lose_a_pod_beside_a_standby(stage: Stage) -> None:
    stage.nodes.wait_phase(stage.site.namespace, f"{stage.job}-standby-0", "Running", timeout_s=LONG_S)
    delete_pod(stage.site, f"{stage.job}-worker-0")
    stage.settled(1)
    stage.nodes.wait_phase(stage.site.namespace, f"{stage.job}-standby-1", "Running", timeout_s=LONG_S)


def lose_touch_with_the_master(stage: Stage) -> None:
    stage.nodes.wait_phase(stage.site.namespace, f"{stage.job}-standby-0", "Running", timeout_s=LONG_S)
    request = {"id": "r1", "pods": [f"{stage.job}-master-0"], "reason": "out of reach", "force": True}
    path = f"{JOBS.format(stage.site.namespace)}/{stage.job}/status"
    stage.site.kube.api.patch(path, {"status": {"requests": [request]}})
    stage.settled(1)
    stage.nodes.wait_phase(stage.site.namespace, f"{stage.job}-standby-1", "Running", timeout_s=LONG_S)


def run_out_of_time(stage: Stage) -> None:
    stage.settled()
    stage.site.wait_state(stage.job, "Failed", "JobFailed", limit_s=LONG_S)
    until(lambda: not stage.site.pods(stage.job), LONG_S)


def be_forgotten(stage: Stage) -> None:
    stage.fail("worker-0", 1)
    path = f"{JOBS.format(stage.site.namespace)}/{stage.job}"
    until(lambda: stage.site.kube.api.find(path) is None, LONG_S)
    until(lambda: not stage.site.pods(stage.job), LONG_S)


def lose_a_pod_while_starting(stage: Stage) -> None:
    """None of the pods has run yet; of the one that is lost only the status still says that it was there."""
    site, lost = stage.site, f"{stage.job}-worker-0"
    every = {"Master": "0", "Worker": "0"}
    until(lambda: site.status(stage.job).get("filled") == every, LONG_S, lambda: f"{site.status(stage.job)}")
    before = uid(site, lost)
    delete_pod(site, lost)
    wait_replaced(site, lost, before, LONG_S)
    for pod in site.pods(stage.job):
        annotate_pod(site, pod, **{HOLD: None})
    stage.settled(1)


def lose_a_pod_that_has_ended_well(stage: Stage) -> None:
    """And a peer with it, which alone comes back."""
    site, done = stage.site, f"{stage.job}-worker-0"
    stage.nodes.wait_phase(site.namespace, done, "Running")
    stage.nodes.succeed(site.namespace, done)
    until(lambda: site.status(stage.job).get("finished") == {"Worker": "0"}, LONG_S)
    delete_pod(site, done)
    delete_pod(site, f"{stage.job}-master-0")
    stage.settled(1)


def move_a_listed_pod(stage: Stage) -> None:
    lose_a_pod(stage)
    until(lambda: _table(stage.site, stage.job)["status"] == "completed", LONG_S)


def doomed_nodes(stage: Stage) -> None:
    """A node to lose, and one to go to."""
    stage.nodes.add(2, labels=DOOMED)


@dataclass(frozen=True)
class History:
    """A job, and what happens to it once it runs (or, with `from_start`, until it runs)."""

    what: Callable[[Stage], None]
    job: dict[str, Any] = field(default_factory=dict)
    from_start: bool = False
    before: Callable[[Stage], None] = lambda _stage: None
    flags: tuple[str, ...] = ()


RECOVERS = {"annotations": {"recover-strategy": "recover"}}
"""A job that has a ConfigMap of its own."""
CERTIFIES = ("--plane", "--plane-listen", "127.0.0.1:0")
"""A controller that makes each job a Secret, too."""

STARTS_SLOWLY = {"marks": {HOLD: "true"}}
"""A job whose pods wait until they are let go."""
DEVICES = {"huawei.com/Ascend910": "2"}
LISTED = {
    "annotations": {"taskd.io/rank-table": "configmap"},
    "container": {"resources": {"limits": DEVICES, "requests": DEVICES}},
}
"""A job that has a rank table."""

STANDBY = {"workers": 2, "annotations": {"taskd.io/standby-pods": "1"}}

HISTORIES = {
    "start": History(Stage.settled, RECOVERS, from_start=True),
    "certified-start": History(Stage.settled, from_start=True, flags=CERTIFIES),
    "certified-pod-lost": History(lose_a_pod, flags=CERTIFIES),
    "pod-lost": History(lose_a_pod, RECOVERS),
    "retry-job": History(fail_a_pod, {"labels": {"fault-retry-times": "2"}}),
    "retry-pod": History(fail_a_pod, {"labels": {"fault-retry-times": "2", "pod-rescheduling": "on"}}),
    "exit-code": History(end_a_pod_by_a_signal, {"restart": "ExitCode"}),
    "suspend": History(suspend_and_resume),
    "finish": History(fail_for_good, {"policy": {"cleanPodPolicy": "All"}}),
    "hot-switch": History(switch_a_pod, {"workers": 2}),
    "backoff": History(lose_pods_too_often, {"policy": {"backoffLimit": 1}}),
    "node-lost": History(lose_a_node, {"workers": 0, "pod": {"nodeSelector": DOOMED}}, before=doomed_nodes),
    "resize": History(make_it_larger),
    "request": History(ask_for_a_move, {"workers": 2}),
    "standby": History(lose_a_pod_beside_a_standby, STANDBY),
    "cut-off": History(lose_touch_with_the_master, STANDBY),
    "deadline": History(run_out_of_time, {"policy": {"activeDeadlineSeconds": 6}}, from_start=True),
    "pod-lost-while-starting": History(lose_a_pod_while_starting, STARTS_SLOWLY, from_start=True),
    "ended-well": History(lose_a_pod_that_has_ended_well),
    "rank-table": History(move_a_listed_pod, LISTED),
    "time-to-live": History(be_forgotten, {"policy": {"ttlSecondsAfterFinished": 1}}),
}


def left(site: Site, job: str) -> Json:
    """All that there is of a job, without times and addresses."""
    raw = site.kube.api.find(f"{JOBS.format(site.namespace)}/{job}")
    found = {"status": _told(raw) if raw else None, **_owned(site, job, raw)}
    text = re.sub(rf"\b{job}\b", "JOB", repr(found))
    replaced: Json = eval(text)  # noqa: S307 - our own repr, with the job's name replaced
    return replaced


def _told(raw: Json) -> Json:
    status = {key: value for key, value in raw["status"].items() if not key.endswith("Time")}
    status.pop("masterAddr", None)
    status["conditions"] = [
        {key: value for key, value in entry.items() if not key.endswith("Time")}
        for entry in status["conditions"]
    ]
    # What no longer holds is history; its order tells only which of two things was seen first.
    gone = [entry for entry in status["conditions"] if entry["status"] == "False"]
    holding = [entry for entry in status["conditions"] if entry["status"] != "False"]
    status["conditions"] = [*sorted(gone, key=lambda entry: str(entry["type"])), *holding]
    if "lastFault" in status:
        status["lastFault"] = {
            key: v for key, v in status["lastFault"].items() if key not in {"time", "node"}
        }
        status["lastFault"]["summary"] = re.sub(r"node-\d+", "NODE", status["lastFault"]["summary"])
    return status


def _owned(site: Site, job: str, raw: Json | None) -> Json:
    pods = {}
    for name, pod in site.pods(job).items():
        marks = pod["metadata"]["annotations"]
        assert raw is None or pod["metadata"]["ownerReferences"][0]["uid"] == raw["metadata"]["uid"]
        pods[re.sub(r"-hot-\w+$", "-hot", name)] = (
            pod["metadata"]["labels"]["version"],
            pod["metadata"]["labels"]["replica-index"],
            marks.get("hccl/rankIndex"),
            pod["status"]["phase"],
            sorted(key for key in marks if key.startswith(("need", "backup", "podType", "inHot"))),
            marks.get("taskd.io/certificates"),
        )
    groups = site.kube.api.items(GROUPS.format(site.namespace))
    maps = site.kube.api.items(f"/api/v1/namespaces/{site.namespace}/configmaps")
    secrets = site.kube.api.items(f"/api/v1/namespaces/{site.namespace}/secrets")
    return {
        "pods": pods,
        "services": sorted(name for name in site.services() if name.startswith(job)),
        "groups": [
            group["spec"]["minMember"] for group in groups if group["metadata"]["name"].startswith(job)
        ],
        "secrets": {
            entry["metadata"]["name"]: (sorted(entry["data"]), len(entry["metadata"]["ownerReferences"]))
            for entry in secrets
            if entry["metadata"]["name"].endswith(f"-{job}")
        },
        "maps": {
            entry["metadata"]["name"]: (_content(entry), len(entry["metadata"].get("ownerReferences", ())))
            for entry in maps
            # What the plane says of a job has its UID and times in it.
            if entry["metadata"]["name"].endswith(f"-{job}")
            and not entry["metadata"]["name"].startswith("job-summary-")
        },
    }


def _content(config_map: Json) -> Json | None:
    """What a ConfigMap says; of a rank table not the addresses, nor how often it was written."""
    data: Json | None = config_map.get("data")
    if data is None or "hccl.json" not in data:
        return data
    table = json.loads(data["hccl.json"])
    ranks = [device["rank_id"] for server in table["server_list"] for device in server["device"]]
    return {"status": table["status"], "servers": table["server_count"], "ranks": sorted(ranks)}


def _table(site: Site, job: str) -> Json:
    path = f"/api/v1/namespaces/{site.namespace}/configmaps/rings-config-{job}"
    found: Json = json.loads(site.kube.api.get(path)["data"]["hccl.json"])
    return found


def _asked(site: Site, job: str, mark: int) -> str:
    """Who wrote what of a job and its pods since a mark, a line each."""
    writes = site.kube.audit.writes(since=mark, namespace=site.namespace)
    return "\n".join(
        f"{each.received_at} {each.code} {each.verb} {each.resource}/{each.subresource} {each.name} "
        f"{each.user_agent[:30]}"
        for each in writes
        if each.name.startswith(job) or not each.name
    )


def _varies(write: str) -> bool:
    """Whether the speed of things says how often that is written: counts of pods, summaries, tables.

    The namespace's own Service is made with its first job, and not again.
    """
    return write.endswith(("/status", "/services/acjob-pods")) or any(
        part in write for part in ("/job-summary-", "/rings-config-")
    )


def tell(stage: Stage, history: History, immortal: Immortal, strike: tuple[int, str] | None) -> Json:
    """Tell the history with one job, the controller killed at that write; returns what is left at the end."""
    content = small(stage.job, **history.job)

    def struck(number: int, _what: str) -> str | None:
        return strike[1] if strike is not None and number == strike[0] else None

    history.before(stage)
    if not history.from_start:
        stage.site.submit(content)
        stage.settled()
    immortal.proxy.writes.clear()
    immortal.proxy.strike = struck
    if history.from_start:
        stage.site.submit(content)
    history.what(stage)
    return left(stage.site, stage.job)


def spare(immortal: Immortal) -> None:
    """Strike no more: what a job does when it is forgotten belongs to no history."""
    immortal.proxy.strike = lambda _number, _what: None


def forget(site: Site, job: str) -> None:
    """Delete a job, if it is still there: what it did must not be counted among the next one's writes."""
    if site.kube.api.find(f"{JOBS.format(site.namespace)}/{job}") is not None:
        site.delete(job)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", HISTORIES)
def test_a_controller_that_dies_at_a_write_is_followed_by_one_that_ends_at_the_same_point(
    name: str, site: Site, immortal: Immortal, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Whatever write it dies at, before or after it is done."""
    history = HISTORIES[name]
    nodes.add(2)
    first = Stage(site, nodes, "job-x")
    tell(first, history, immortal, None)
    wanted: list[Json] = []

    def at_rest() -> bool:
        # Counts of pods may come a little later than the state that the history waits for.
        wanted.append(left(site, "job-x"))
        return len(wanted) > 20 and wanted[-20] == wanted[-1]

    until(at_rest, LONG_S)
    calm = list(immortal.proxy.writes)
    count = len(calm)
    forget(site, "job-x")
    assert count >= 2, calm
    points = [(number, way) for number in range(1, count + 1) for way in (BEFORE, AFTER)]
    if os.environ.get("TASKD_KILLS") != "all":
        odd = list(HISTORIES).index(name) % 2
        points = [(max(1, count // 2), BEFORE) if odd else ((count + 1) // 2, AFTER)]
    missed = []
    for turn, point in enumerate(points):
        kills, mark = immortal.kills, site.kube.audit.mark()
        stage = Stage(site, nodes, f"job-{turn}")
        try:
            found = [tell(stage, history, immortal, point)]
        except AssertionError as error:
            error.add_note(f"killed {point[1]} write {point[0]}\n{_asked(site, stage.job, mark)}")
            error.add_note(immortal.controller.log.read_text()[-4000:])
            raise

        def same(job: str = stage.job, found: list[Json] = found) -> bool:
            found.append(left(site, job))
            return found[-1] == wanted[-1]

        try:
            until(same, 20)
        except AssertionError:
            before, after = (pprint.pformat(end, width=200).splitlines() for end in (wanted[-1], found[-1]))
            differences = "\n".join(difflib.unified_diff(before, after))
            pytest.fail(f"killed {point[1]} write {point[0]} of {immortal.proxy.writes}:\n{differences}")
        spare(immortal)
        if immortal.kills == kills:
            missed.append(point)
        forget(site, stage.job)
    # A history may be told with fewer of the writes that vary, and then has no write of the last numbers.
    sure = count - sum(map(_varies, calm))
    assert [] == [point for point in missed if point[0] <= sure], calm
    assert immortal.kills, calm
