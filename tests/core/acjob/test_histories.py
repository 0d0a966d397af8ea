"""Random histories: whatever happens to a job, in whatever order, certain things always hold.

A `Play` is a cluster of values. Each step does something to it (a pod fails, a node dies, somebody deletes,
suspends, edits, switches, or the controller is killed at some write) and lets the controller act. After each
step everything that must always hold is checked, and at the end that the job comes to rest.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from taskd.core.acjob import names
from taskd.core.acjob import status as statuses
from taskd.core.acjob.seen import Ended, PodSeen
from taskd.core.acjob.status import moment
from tests.core.acjob.play import Killed, Play, raw_job

ENDS = ("Succeeded", "Failed")
PODS = st.integers(0, 4)
EXAMPLES = int(os.environ.get("TASKD_HISTORIES", "60"))
"""How many histories; each takes some hundredths of a second."""


class History(RuleBasedStateMachine):
    """One job and everything that can befall it."""

    def __init__(self) -> None:
        super().__init__()
        self.harm = 0
        self.restarts = 0
        self.ended = ""
        self.play = Play(raw_job())

    @initialize(
        workers=st.integers(0, 3),
        retries=st.sampled_from(["", "0", "2"]),
        limit=st.sampled_from([None, 1, 3]),
        restart=st.sampled_from(["Never", "ExitCode"]),
        single=st.booleans(),
        clean=st.sampled_from([None, "Running", "All"]),
        gang=st.booleans(),
        phase=st.sampled_from(["Running", "Pending"]),
        standbys=st.sampled_from(["0", "0", "1", "2"]),
    )
    def begin(self, **given: Any) -> None:
        labels = {"fault-retry-times": given["retries"]} if given["retries"] else {}
        if given["single"]:
            labels["pod-rescheduling"] = "on"
        policy = {"backoffLimit": given["limit"], "cleanPodPolicy": given["clean"]}
        raw = raw_job(
            workers=given["workers"],
            labels=labels,
            restart=given["restart"],
            annotations={names.STANDBY_PODS: given["standbys"]},
            policy={name: value for name, value in policy.items() if value is not None},
        )
        self.play = Play(raw, gang=given["gang"], phase=given["phase"])
        self.act()

    # --------------------------------------------------------------------------------- what happens

    def act(self) -> None:
        """Let the controller do its work. One that is killed is followed by another."""
        self.play.now += 1
        try:
            self.play.reconcile()
        except Killed:
            event("killed")
            self.play.crash()
            self.play.reconcile()
        self.play.kill_at = None

    def pick(self, number: int) -> PodSeen | None:
        pods = sorted(self.play.pods.values(), key=lambda pod: pod.name)
        return pods[number % len(pods)] if pods else None

    @rule(after=st.integers(1, 8))
    def kill_the_controller_soon(self, after: int) -> None:
        self.play.kill_at = self.play.writes + after

    @rule()
    def another_controller(self) -> None:
        self.play.crash()
        self.act()

    @rule()
    def the_wait_is_over(self) -> None:
        """A job that restarts again and again waits in between."""
        if self.play.wake_at is not None:
            event("waited")
            self.play.now = max(self.play.now, self.play.wake_at)
            self.act()

    @rule()
    def pods_start(self) -> None:
        self.play.run_all()
        self.act()

    @rule()
    def the_scheduler_lets_it_in(self) -> None:
        if self.play.group is not None:
            self.play.group = replace(self.play.group, phase="Running")
        self.act()

    @rule(number=PODS, code=st.sampled_from([1, 137, 139]))
    def a_pod_fails(self, number: int, code: int) -> None:
        pod = self.pick(number)
        if pod is not None and pod.phase == "Running":
            self.harm += not pod.standby  # how a standby fares is nobody's restart
            self.play.change(pod.name, phase="Failed", ended=(Ended("ascend", code),))
            self.act()

    @rule(number=PODS)
    def a_pod_is_evicted(self, number: int) -> None:
        pod = self.pick(number)
        if pod is not None and pod.phase in {"Running", "Pending"}:
            self.harm += not pod.standby  # how a standby fares is nobody's restart
            self.play.change(pod.name, phase="Failed", reason="Evicted", disrupted=True)
            self.act()

    @rule(number=PODS)
    def a_pod_is_deleted(self, number: int) -> None:
        pod = self.pick(number)
        if pod is not None:
            self.harm += not pod.standby  # how a standby fares is nobody's restart
            self.play.lose(pod.name)
            self.act()

    @rule(number=PODS)
    def a_pod_is_being_deleted(self, number: int) -> None:
        pod = self.pick(number)
        if pod is not None:
            self.harm += not pod.standby  # how a standby fares is nobody's restart
            self.play.change(pod.name, deleting=True)
            self.act()

    @rule()
    def what_is_being_deleted_is_gone(self) -> None:
        for pod in [pod for pod in self.play.pods.values() if pod.deleting]:
            self.play.lose(pod.name)
        self.act()

    @rule(number=PODS)
    def a_node_is_gone(self, number: int) -> None:
        pod = self.pick(number)
        if pod is not None and pod.phase == "Running":
            self.harm += not pod.standby  # how a standby fares is nobody's restart
            node = f"node-{len(self.play.gone) + 100}"
            self.play.change(pod.name, node=node)
            self.play.gone |= {node}
            self.act()

    @rule(number=PODS)
    def a_pod_is_done(self, number: int) -> None:
        pod = self.pick(number)
        if pod is not None and pod.phase == "Running":
            self.play.change(pod.name, phase="Succeeded", ended=(Ended("ascend", 0),))
            self.act()

    @rule(wish=st.booleans())
    def somebody_suspends_or_resumes(self, wish: bool) -> None:
        self.play.raw["spec"]["runPolicy"]["suspend"] = wish
        self.edited()

    @rule(workers=st.integers(1, 3))
    def somebody_changes_its_size(self, workers: int) -> None:
        replicas = self.play.raw["spec"]["replicaSpecs"]
        replicas["Worker"] = {**copy.deepcopy(replicas["Master"]), "replicas": workers}
        self.edited()

    @rule(count=st.sampled_from(["0", "1", "2"]))
    def somebody_wants_other_standbys(self, count: str) -> None:
        self.play.raw["metadata"]["annotations"] = {names.STANDBY_PODS: count}
        self.act()

    @rule(number=PODS, cut=st.booleans())
    def somebody_asks_for_a_move(self, number: int, cut: bool) -> None:
        pod = self.pick(number)
        if pod is not None and not pod.standby and self.play.status:
            listed = self.play.raw["status"].setdefault("requests", [])
            more = {"force": True, "avoid": [pod.node or "node-1"]} if cut else {}
            listed.append({"id": f"r{len(listed)}", "pods": [pod.name], "reason": "asked", **more})
            self.harm += 1
            self.act()

    @rule()
    def somebody_spoils_it_and_mends_it(self) -> None:
        self.play.raw["metadata"]["labels"]["framework"] = "caffe"
        self.edited()
        self.play.raw["metadata"]["labels"]["framework"] = "pytorch"
        self.edited()

    def edited(self) -> None:
        self.play.raw["metadata"]["generation"] += 1
        self.act()

    @rule(number=PODS, mark=st.sampled_from(["create", "delete", "switch"]))
    def somebody_switches(self, number: int, mark: str) -> None:
        pod = self.pick(number)
        if pod is None:
            return
        marks = dict(pod.annotations)
        if mark == "create" and not pod.backup:
            marks |= {names.HOT_SWITCH: "true", names.ASK_OPERATOR: "create"}
        elif mark == "delete" and pod.backup:
            marks |= {names.ASK_OPERATOR: "delete"}
        elif mark == "switch" and names.BACKUP_NEW in marks:
            marks |= {names.ASK_VOLCANO: "delete"}
        self.play.change(pod.name, annotations=marks)
        self.act()

    # -------------------------------------------------------------------------- what always holds

    @invariant()
    def one_pod_in_a_place(self) -> None:
        kept = [
            pod for pod in self.play.pods.values() if not pod.deleting and not pod.backup and not pod.standby
        ]
        places = [pod.slot for pod in kept]
        assert len(places) == len(set(places)), kept

    @invariant()
    def conditions_make_sense(self) -> None:
        listed = self.play.status.get("conditions", [])
        kinds = [entry["type"] for entry in listed]
        assert len(kinds) == len(set(kinds))
        true = [entry["type"] for entry in listed if entry["status"] == "True" and entry["type"] != "Created"]
        assert len(true) <= 1, listed
        if listed:
            assert listed[-1]["status"] == "True", listed
            times = [moment(entry["lastUpdateTime"]) or 0.0 for entry in listed]
            assert times[-1] > 0.0

    @invariant()
    def restarts_only_grow_and_each_has_a_cause(self) -> None:
        status = self.play.status
        counted = status.get("restarts", 0)
        assert counted >= self.restarts
        self.restarts = counted
        harmful = counted - status.get("voluntaryRestarts", 0)
        assert harmful <= self.harm
        assert sum(status.get("restartCauses", {}).values()) == counted
        assert status.get("retries", 0) <= counted

    @invariant()
    def an_end_is_an_end(self) -> None:
        last = (self.play.status.get("conditions") or [{"type": "", "reason": ""}])[-1]
        if self.ended:
            assert last["type"] == self.ended
        elif last["type"] in ENDS and last["reason"] != "JobValidFailed":
            self.ended = last["type"]
            event(f"ended {self.ended}")

    @invariant()
    def who_has_ended_holds_no_devices(self) -> None:
        if self.ended:
            active = [
                pod
                for pod in self.play.pods.values()
                if pod.phase in {"Running", "Pending"} and not pod.deleting
            ]
            assert not active
            assert self.play.group is None or self.play.pods

    @invariant()
    def nothing_is_written_when_nothing_has_changed(self) -> None:
        if self.play.kill_at is None:
            before = self.play.writes
            self.play.reconcile()
            assert self.play.writes == before
            if self.play.wake_at is None:
                self.play.now += 10
                self.play.reconcile()
                assert self.play.writes == before

    @invariant()
    def running_is_said_only_of_what_runs(self) -> None:
        listed = self.play.status.get("conditions", [])
        if self.play.kill_at is None and any(
            entry["type"] == "Running" and entry["status"] == "True" for entry in listed
        ):
            kept = [
                pod
                for pod in self.play.pods.values()
                if pod.phase in {"Running", "Succeeded"} and not pod.deleting and not pod.standby
            ]
            finished = statuses.read(self.play.raw).finished
            assert len(finished | {pod.slot for pod in kept}) == sum(
                spec["replicas"] for spec in self.play.raw["spec"]["replicaSpecs"].values()
            )

    @precondition(lambda self: not self.ended)
    @rule()
    def left_alone_it_runs_or_ends(self) -> None:
        """Resumed, let in, all pods started and all deletions done: a job is at work, or it has ended."""
        self.play.raw["spec"]["runPolicy"]["suspend"] = False
        self.play.kill_at = None
        for _ in range(6):
            for pod in [pod for pod in self.play.pods.values() if pod.deleting]:
                self.play.lose(pod.name)
            self.the_scheduler_lets_it_in()
            self.the_wait_is_over()
            self.pods_start()
        assert self.play.state in {"Running", *ENDS}, self.play.status
        if self.play.state == "Running":
            shapes = {pod.annotations[names.SHAPE] for pod in self.play.pods.values() if not pod.backup}
            assert len(shapes) == 1, "all pods know the same shape"
            kept = [pod for pod in self.play.pods.values() if pod.standby]
            wanted = int(self.play.raw["metadata"]["annotations"].get(names.STANDBY_PODS, "0"))
            assert self.play.status.get("finished") or len(kept) == wanted, kept


def test_whatever_happens_certain_things_always_hold() -> None:
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Making a failing history shorter takes minutes; its steps are short enough to read.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
        ),
    )
