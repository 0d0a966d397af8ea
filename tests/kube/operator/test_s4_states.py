"""The five states of a job, as kubectl shows them, each when it should and only then."""

import json
import re
import time
from datetime import datetime

import pytest
import yaml

from tests.kube.operator.site import Json, until
from tests.kube.operator.small import counts
from tests.kube.operator.town import NPU, Town, job

TYPES = {"Created", "Running", "Restarting", "Succeeded", "Failed"}
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def shown(town: Town, name: str) -> str:
    """The state that `kubectl get acjob` prints."""
    head, row = town.site.kube.kubectl("get", "acjob", "-n", town.namespace, name).splitlines()
    cells = row.split()
    assert ["NAME", "STATE", "AGE"] == head.split()
    assert name == cells[0]
    return cells[1] if len(cells) == 3 else ""


def held(conditions: list[Json]) -> set[str]:
    """The types that are true."""
    return {condition["type"] for condition in conditions if condition["status"] == "True"}


def test_s4_25_s4_26_s4_27_created_until_every_pod_has_started(town: Town) -> None:
    """With one pod still on its way the job is Created, however long that lasts; with all it is Running."""
    name = town.site.submit(job("starting", workers=2, hold="Worker"))
    town.site.wait_pods(name, 3)
    town.nodes.wait_phase(town.namespace, "starting-master-0", "Running")
    town.site.wait_state(name, "Created", "JobCreated")
    town.release("starting-worker-0")
    town.nodes.wait_phase(town.namespace, "starting-worker-0", "Running")
    until(lambda: town.site.status(name).get("readyReplicas") == "2/3")

    assert "Created" == shown(town, name)
    assert {"Created"} == held(town.site.status(name)["conditions"])

    town.release("starting-worker-1")
    town.site.wait_state(name, "Running", "JobRunning")
    assert "Running" == shown(town, name)
    assert {"Master": {"active": 1}, "Worker": {"active": 2}} == counts(town.site.status(name))


@pytest.mark.usefixtures("alone")
def test_s4_28_restarting_until_the_lost_pod_runs_again(town: Town) -> None:
    """A job that lost a pod is Restarting, and no longer Running, until its successor has started."""
    name = town.running(job("restarting", policy={"backoffLimit": 3}))
    before = town.site.pod("restarting-worker-0")
    # The successor is the same pod by its template, so it is held by the scheduler that is away.
    town.volcano.stop()
    try:
        town.site.kube.kubectl("delete", "pod", "-n", town.namespace, "restarting-worker-0", "--wait=false")
        town.wait_gone("restarting-worker-0", before["metadata"]["uid"])
        town.site.wait_state(name, "Restarting", "jobRestarting")
        town.site.wait_pods(name, 2)
        assert "Restarting" == shown(town, name)
        assert not {"Running", "Failed"} & held(town.site.status(name)["conditions"])
    finally:
        town.volcano.start()

    town.site.wait_state(name, "Running")
    after = town.site.pod("restarting-worker-0")
    assert (
        before["metadata"]["annotations"]["hccl/rankIndex"]
        == after["metadata"]["annotations"]["hccl/rankIndex"]
    )
    assert "Restarting" not in held(town.site.status(name)["conditions"])
    assert 1 == town.site.status(name)["restarts"]


def test_s4_29_succeeded_when_all_pods_have_ended_well(town: Town) -> None:
    """Not before the last one."""
    name = town.running(job("succeeding", workers=2))
    for pod in ("succeeding-master-0", "succeeding-worker-1"):
        town.nodes.succeed(town.namespace, pod)
    until(lambda: town.site.status(name)["replicaStatuses"]["Worker"].get("succeeded") == 1)
    assert "Running" == shown(town, name)

    town.nodes.succeed(town.namespace, "succeeding-worker-0")
    last = town.site.wait_state(name, "Succeeded", "JobSucceeded")

    assert f"Job {town.namespace}/succeeding successfully completed." == last["message"]
    assert {"Created", "Succeeded"} == held(town.site.status(name)["conditions"])
    assert town.site.status(name)["completionTime"]
    assert "Succeeded" == shown(town, name)


def test_s4_11_all_workers_waits_for_those_that_compute(town: Town) -> None:
    """A Scheduler without a device never ends by itself: with AllWorkers it is not waited for."""
    pattern = job("coordinated", framework="mindspore", devices={NPU: 1}, successPolicy="AllWorkers")
    del pattern["spec"]["replicaSpecs"]["Scheduler"]["template"]["spec"]["containers"][0]["resources"]
    name = town.running(pattern)

    town.nodes.succeed(town.namespace, "coordinated-worker-0")
    town.site.wait_state(name, "Succeeded")

    town.site.wait_pods(name, 1)  # it was stopped, and gave back what it held
    assert "coordinated-worker-0" in town.site.pods(name)


def test_s4_11_all_workers_waits_for_a_master_that_trains(town: Town) -> None:
    """The Master may still be saving when its Workers have ended."""
    name = town.running(job("led", devices={NPU: 1}, successPolicy="AllWorkers"))
    town.nodes.succeed(town.namespace, "led-worker-0")
    until(lambda: town.site.status(name)["replicaStatuses"]["Worker"].get("succeeded") == 1)
    assert "Running" == town.site.state(name)

    town.nodes.succeed(town.namespace, "led-master-0")
    town.site.wait_state(name, "Succeeded")


def test_s4_30_s4_38_failed_when_a_pod_has_failed(town: Town) -> None:
    """One failed pod, of whatever type, fails a job that has no tries; its peers give back their devices."""
    for victim, exit_code in (("master-0", 1), ("worker-1", 137)):
        name = town.running(job(f"failing-{victim}", workers=2))
        town.exit(f"{name}-{victim}", exit_code)
        last = town.site.wait_state(name, "Failed", "JobFailed")

        assert f"Job {town.namespace}/{name} has failed because has pod failed." == last["message"]
        assert {"Created", "Failed"} == held(town.site.status(name)["conditions"])
        assert "Failed" == shown(town, name)
        assert [f"{name}-{victim}"] == list(town.site.wait_pods(name, 1))


def test_s4_31_s4_36_s4_37_the_exception_is_recorded_in_detail(town: Town) -> None:
    """The condition names reason and sentence; the first cause names pod, node, container and exit code."""
    name = town.running(job("recorded", workers=2))
    node = town.site.pod("recorded-worker-1")["spec"]["nodeName"]
    town.nodes.out_of_memory(town.namespace, "recorded-worker-1")
    last = town.site.wait_state(name, "Failed")

    assert ("Failed", "True", "JobFailed") == (last["type"], last["status"], last["reason"])
    assert last["message"]
    fault = town.site.status(name)["lastFault"]
    assert ("recorded-worker-1", node, "ascend", 137, "OOMKilled") == tuple(
        fault[field] for field in ("pod", "node", "container", "exitCode", "reason")
    )
    assert f"container ascend of pod recorded-worker-1 on {node} ran out of memory" == fault["summary"]
    (told,) = until(lambda: [event for event in town.site.events(name) if event[1] == "JobFailed"])
    assert "Warning" == told[0]
    assert told[2].endswith(f"First cause: {fault['summary']}")


def test_s4_32_to_s4_37_the_form_of_conditions(town: Town) -> None:
    """Six strings each, one entry a type, at most one of the states true: at every moment of a life."""
    pattern = job("formed", labels={"fault-retry-times": "1"}, annotations={"recover-strategy": "recover"})
    watch = town.site.kube.api.watch(f"/apis/mindxdl.gitee.com/v1/namespaces/{town.namespace}/ascendjobs")
    seen: list[list[Json]] = []
    name = town.running(pattern)
    town.exit("formed-worker-0")
    until(lambda: town.site.status(name).get("restarts") == 1)
    town.site.wait_state(name, "Running")
    town.exit("formed-worker-0")
    town.site.wait_state(name, "Failed")
    for event in watch:
        if event.object.get("metadata", {}).get("name") == name:
            seen.append(event.object.get("status", {}).get("conditions", []))
            if seen[-1] and seen[-1][-1]["type"] == "Failed":
                break
    watch.close()

    met = set()
    for conditions in seen:
        kinds = [condition["type"] for condition in conditions]
        assert len(kinds) == len(set(kinds))
        assert len(held(conditions) - {"Created"}) <= 1
        for condition in conditions:
            met.add(condition["type"])
            assert {"type", "status", "reason", "message", "lastUpdateTime", "lastTransitionTime"} == set(
                condition
            )
            assert all(isinstance(value, str) and value for value in condition.values())
            assert condition["type"] in TYPES
            assert condition["status"] in {"True", "False", "Unknown"}
            for field in ("lastUpdateTime", "lastTransitionTime"):
                assert RFC3339.fullmatch(condition[field])
            assert condition["lastTransitionTime"] <= condition["lastUpdateTime"]
    assert {"Created", "Running", "Restarting", "Failed"} == met


def test_s4_33_the_status_of_a_condition_is_quoted_text(town: Town) -> None:
    """In YAML as in the definition: not a boolean, which True without quotes would be."""
    name = town.running(job("quoted"))
    town.nodes.succeed(town.namespace, "quoted-master-0")
    town.nodes.succeed(town.namespace, "quoted-worker-0")
    town.site.wait_state(name, "Succeeded")

    text = town.site.kube.kubectl("get", "acjob", "-n", town.namespace, name, "-o", "yaml")

    assert 'status: "True"' in text
    assert 'status: "False"' in text
    assert "status: True\n" not in text


@pytest.fixture(scope="module")
def finished(town: Town) -> str:
    """A job that has ended well."""
    name = town.running(job("read"))
    for pod in ("read-master-0", "read-worker-0"):
        town.nodes.succeed(town.namespace, pod)
    town.site.wait_state(name, "Succeeded")
    return name


def test_s4_49_the_whole_status_as_yaml(town: Town, finished: str) -> None:
    """In the guide's own spelling."""
    text = town.site.kube.kubectl("get", "acjob", "-n", town.namespace, finished, "-o", "yaml")
    status = yaml.safe_load(text)["status"]

    assert ["Created", "Running", "Succeeded"] == [condition["type"] for condition in status["conditions"]]
    assert {"Master": {"succeeded": 1}, "Worker": {"succeeded": 1}} == counts(status)
    assert {"startTime", "completionTime", "observedGeneration", "lastReconcileTime"} <= set(status)


def test_s4_25_wide_adds_pods_restarts_strategy_and_the_last_fault(town: Town) -> None:
    """What the controller has come to know of a job that lost a pod, in one line."""
    name = town.running(
        job("wide", annotations={"recover-strategy": "retry, recover"}, restart_policy="ExitCode")
    )
    town.exit("wide-worker-0", 137, reason="OOMKilled")
    until(lambda: town.site.status(name).get("restarts") == 1 and town.site.state(name) == "Running")

    head, row = town.site.kube.kubectl("get", "acjob", "-n", town.namespace, name, "-o", "wide").splitlines()

    assert ["NAME", "STATE", "AGE", "READY", "RESTARTS", "STRATEGY", "LASTFAULT"] == head.split()
    assert [name, "Running"] == row.split()[:2]
    assert ["2/2", "1", "retry,recover"] == row.split()[3:6]
    assert "wide-worker-0" in row
    assert "ran out of memory" in row


def test_s4_30_with_the_policy_none_the_peers_of_a_failed_pod_run_on(town: Town) -> None:
    """Only what has no node yet goes: it would start for nothing."""
    policy = {"cleanPodPolicy": "None", "schedulingPolicy": {"minAvailable": 2}}
    pattern = job("kept", workers=3, policy=policy)
    pattern["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["nodeSelector"] = {"nobody": "has-this"}
    name = town.site.submit(pattern)
    for index in range(3):
        town.nodes.wait_phase(town.namespace, f"kept-worker-{index}", "Running")
    peers = {pod: town.site.pod(pod)["metadata"]["uid"] for pod in ("kept-worker-1", "kept-worker-2")}
    waiting = town.site.pod("kept-master-0")
    assert "nodeName" not in waiting["spec"]
    town.exit("kept-worker-0")
    town.site.wait_state(name, "Failed", "JobFailed")
    town.wait_gone("kept-master-0", waiting["metadata"]["uid"])
    # Whatever makes the controller look at it again changes nothing.
    town.site.patch(name, {"metadata": {"annotations": {"somebody": "was-here"}}})
    time.sleep(1.5)

    found = town.site.pods(name)
    assert {"kept-worker-0", *peers} == found.keys()
    for pod, known in peers.items():
        assert known == found[pod]["metadata"]["uid"]
        assert "Running" == found[pod]["status"]["phase"]
        assert "deletionTimestamp" not in found[pod]["metadata"]
    assert {"Worker": {"active": 2, "failed": 1}} == {
        kind: count for kind, count in counts(town.site.status(name)).items() if count
    }


def test_s4_50_the_conditions_by_jsonpath(town: Town, finished: str) -> None:
    """All of them, as a list."""
    text = town.site.kube.kubectl(
        "get", "acjob", "-n", town.namespace, finished, "-o", "jsonpath={.status.conditions}"
    )

    assert [("Created", "True"), ("Running", "False"), ("Succeeded", "True")] == [
        (condition["type"], condition["status"]) for condition in json.loads(text)
    ]


def test_s4_51_the_last_condition_is_the_newest(town: Town) -> None:
    """At every step: Created again after Running, where the job is halted, stands last."""

    def last(name: str) -> tuple[str, str]:
        text = town.site.kube.kubectl(
            "get", "acjob", "-n", town.namespace, name, "-o", "jsonpath={.status.conditions[-1]}"
        )
        condition = json.loads(text)
        return condition["type"], condition["reason"]

    name = town.running(job("newest"))
    assert ("Running", "JobRunning") == last(name)

    town.site.patch(name, {"spec": {"runPolicy": {"suspend": True}}})
    town.site.wait_state(name, "Created", "JobSuspended")
    assert ("Created", "JobSuspended") == last(name)
    town.site.wait_pods(name, 0)
    until(lambda: town.site.status(name)["readyReplicas"] == "0/2")

    town.site.patch(name, {"spec": {"runPolicy": {"suspend": False}}})
    town.site.wait_state(name, "Running")
    assert ("Running", "JobRunning") == last(name)
    times = [condition["lastUpdateTime"] for condition in town.site.status(name)["conditions"]]
    assert sorted(times, key=datetime.fromisoformat) == times
