"""The bodies around the fault centre, as far as they can be shown without a cluster."""

import asyncio
import dataclasses
import json
from typing import Any, cast

import pytest
import structlog
import yaml
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.faults.deviceinfo import read_device_info
from taskd.core.faults.events import DeviceInfoSeen, Event, JobSeen
from taskd.core.faults.places import PodPlace
from taskd.core.faults.policy import Relations, Separation, Strategy
from taskd.core.faults.view import Health, JobFaults
from taskd.core.gojson import compact
from taskd.kube.client import KubeClient
from taskd.kube.objects import (
    Condition,
    ContainerStatus,
    Node,
    NodeAddress,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Taint,
)
from taskd.plane.configmaps import ConfigMaps
from taskd.plane.faultcentre import FaultCentre
from taskd.plane.names import PlaneNames
from taskd.plane.policies import read_policies
from taskd.plane.publishing import Publisher, Shards
from taskd.plane.sights import JobReader, epoch, see_node
from tests.core.faults.scenes import T0, device_info, fault, message
from tests.core.faults.scenes import job as sample_job

DEVICES = "ascend.kubectl.kubernetes.io/ascend-910-configuration"


def raw_job(workers: int = 2, device: str = "huawei.com/Ascend910", **metadata: Any) -> dict[str, Any]:
    container = {"name": "ascend", "image": "i", "resources": {"limits": {device: 2}}}
    spec = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    labels = {"framework": "pytorch", **metadata.pop("labels", {})}
    return {
        "metadata": {
            "name": "j", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": labels, **metadata,
        },
        "spec": {"replicaSpecs": {"Master": spec, "Worker": {**spec, "replicas": workers}}},
    }  # fmt: skip


def pod(kind: str, index: int, node: str = "n", *, phase: str = "Running", **annotations: str) -> Pod:
    chips = json.dumps({"devices": [{"device_id": "6"}, {"device_id": "4"}]})
    return Pod(
        metadata=ObjectMeta(
            name=f"j-{kind}-{index}",
            uid=f"{kind}{index}{annotations.get('podType', '')}",
            labels={
                "training.kubeflow.org/replica-type": kind,
                "training.kubeflow.org/replica-index": str(index),
            },
            annotations={DEVICES: chips, **annotations},
        ),
        spec=PodSpec(node_name=node),
        status=PodStatus(
            phase=phase, container_statuses=(ContainerStatus(name="ascend", container_id="c://1"),)
        ),
    )


def places(reader: JobReader, raw: dict[str, Any], *pods: Pod) -> tuple[PodPlace, ...]:
    found = reader.see_job(raw, pods, lambda _node: "SN")
    assert found is not None
    return found.sight.pods


def test_pods_have_the_ranks_of_their_places() -> None:
    """Chips in the order of the annotation; a pod that has not started has no place yet."""
    reader, raw = JobReader(), raw_job()
    found = places(
        reader, raw, pod("worker", 1, "c"), pod("master", 0, "a"), pod("worker", 0, phase="Pending")
    )

    assert [
        PodPlace("j-master-0", "master0", "a", 0, 0, 2, (6, 4), "huawei.com/Ascend910"),
        PodPlace("j-worker-1", "worker1", "c", 2, 4, 2, (6, 4), "huawei.com/Ascend910"),
    ] == list(found)
    assert ((4,), (5,), (), (4, 5)) == tuple(found[1].ranks(chip) for chip in (6, 4, 0, -1))


def test_a_pod_that_stands_by_takes_over_when_the_other_is_gone() -> None:
    """Until then the faults of its node are not the job's."""
    reader, raw = JobReader(), raw_job(1)
    old = pod("worker", 0, "old")
    standby = pod("worker", 0, "new", podType="backup", backupSourcePodName="j-worker-0")
    standby = Pod(
        metadata=ObjectMeta(
            name="j-worker-0-b",
            uid="b",
            labels=standby.metadata.labels,
            annotations=standby.metadata.annotations,
        ),
        spec=standby.spec,
        status=standby.status,
    )

    assert ["old"] == [place.node for place in places(reader, raw, old, standby)]
    assert ["new"] == [place.node for place in places(reader, raw, standby)]


def test_what_a_job_wants_is_read_with_blanks_and_all() -> None:
    """The reference trims in one place and not in the other."""
    labels = {"subHealthyStrategy": "hotSwitch", "fault-scheduling": "grace"}
    assert (True, True, False) == wishes(labels)


@pytest.mark.parametrize(
    "labels",
    [{}, {"fault-scheduling": "off"}, {"fault-scheduling": "grace", "process-recover-enable": "pause"}],
    ids=str,
)
def test_nothing_is_held_back_for_a_recovery_that_may_not_happen(labels: dict[str, str]) -> None:
    """The strategies are named, but the job does not allow anything to be done."""
    assert (False, False, True) == wishes(labels)


def wishes(labels: dict[str, str]) -> tuple[bool, bool, bool]:
    raw = raw_job(annotations={"recover-strategy": " retry , recover-in-place"}, labels=labels)
    found = JobReader().see_job(raw, (), lambda _node: "")
    assert found is not None
    return found.sight.retry, found.sight.in_place, found.sight.ignores_sub_health


def test_a_job_that_is_not_valid_has_no_pods_to_look_at() -> None:
    """Whatever is wrong with it is told by the operator."""
    assert JobReader().see_job({"metadata": {"uid": "u"}, "spec": 5}, (), lambda _node: "") is None


def test_devices_that_cannot_be_read_are_told_and_cost_only_their_numbers() -> None:
    """The pod's ranks are known all the same, as a whole."""
    found = JobReader().see_job(raw_job(), [pod("master", 0, **{DEVICES: "{"})], lambda _node: "")
    assert found is not None
    assert (0, 1) == found.sight.pods[0].ranks(3)
    assert "not JSON" in found.notes[0]


def test_the_summary_has_what_the_pods_say() -> None:
    """Serial numbers, containers, the time of creation."""
    found = JobReader().see_job(raw_job(0), [pod("master", 0)], lambda node: f"SN-{node}")
    assert found is not None
    facts = found.facts
    assert (1, 1767323045, "SN-n", {"ascend": "c://1"}) == (
        facts.wanted, facts.created, facts.pods[0].serial, facts.pods[0].containers,
    )  # fmt: skip
    assert facts.needs_devices
    gpu = JobReader().see_job(raw_job(device="nvidia.com/gpu"), (), lambda _node: "")
    assert gpu is not None
    assert not gpu.facts.needs_devices


def test_what_was_read_is_not_read_again() -> None:
    """Only a pod that is another object now; and a job that is gone leaves nothing."""
    reader, raw, one = JobReader(), raw_job(), pod("master", 0)
    first = places(reader, raw, one)
    again = places(reader, raw, one, pod("worker", 0))
    assert first[0] is again[0]
    assert places(reader, raw_job(), one)[0] is not first[0]
    reader.forget("u")
    assert (0, 0) == (len(reader._forms), len(reader._pods))


def test_a_node_is_read_with_address_and_devices() -> None:
    """As the kubelet reports it."""
    node = Node(
        metadata=ObjectMeta(name="n", annotations={"product-serial-number": "SN"}),
        spec=NodeSpec(unschedulable=True, taints=(Taint(key="t", effect="NoExecute"),)),
        status=NodeStatus(
            conditions=(Condition(type="Ready", status="True"),),
            addresses=(
                NodeAddress(type="Hostname", address="h"),
                NodeAddress(type="InternalIP", address="10.0.0.1"),
                NodeAddress(type="InternalIP", address="fd00::1"),
            ),
            capacity={"nvidia.com/gpu": "8"},
            allocatable={"nvidia.com/gpu": "8"},
        ),
    )
    found = see_node(node)
    assert ("10.0.0.1", "SN", {}) == (found.ip, found.serial, found.missing)
    assert ["node.kubernetes.io/unschedulable", "t"] == [complaint.code for complaint in found.complaints]


def test_times_of_the_api_are_seconds() -> None:
    """What is none is zero."""
    assert (1767323045, 0, 0) == (epoch("2026-01-02T03:04:05Z"), epoch(None), epoch("soon"))


# --------------------------------------------------------------------------------------------------- policies


def test_each_key_of_the_configuration_counts_on_its_own() -> None:
    """A bad one is told, and the others are used."""
    policy = {
        "enabled": True,
        "separate": {"fault_window_hours": 1, "fault_threshold": 2},
        "release": {"fault_free_hours": 3},
    }
    rule = [{"TriggerFault": "A", "RelationFaults": ["B"], "FaultStrategy": "Separate"}]
    found, refused = read_policies(
        {
            "manually_separate_policy.conf": yaml.safe_dump(policy),
            "relationFaultCustomization.json": json.dumps(rule),
            "publicFaultConfiguration.json": "{",
        },
        Relations(),
    )

    assert Separation(True, 3600, 2, 3 * 3600) == found.separation
    assert found.relations is not None
    assert (Strategy.SEPARATE, Relations().windows) == (
        found.relations.strategy("A", "B"), found.relations.windows,
    )  # fmt: skip
    assert found.table is None
    assert ["publicFaultConfiguration.json"] == [reason.partition(":")[0] for reason in refused]


@given(
    st.text(max_size=40) | st.sampled_from(["{", "&a [*a]", "2001-99-99", "enabled: &x\n  *x", "- " * 500])
)
def test_no_yaml_ends_the_reader(text: str) -> None:
    """A person writes it."""
    found, refused = read_policies({"manually_separate_policy.conf": text}, Relations())
    assert (found.separation is None) == bool(refused)


# ----------------------------------------------------------------------------------------------------- shards

CHANGES = st.lists(
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.none() | st.integers(0, 60), max_size=4),
    max_size=8,
)


@given(CHANGES)
def test_config_maps_together_have_every_entry_once(changes: list[dict[str, int | None]]) -> None:
    """However entries come, grow and go; and what was not named has not changed."""
    shards = Shards("p-", limit=150)
    wanted: dict[str, str] = {}
    held: dict[str, str] = {}
    for change in changes:
        texts = {name: None if size is None else compact("x" * size) for name, size in change.items()}
        held |= shards.change(texts)
        for name, text in texts.items():
            wanted.pop(name, None)
            if text is not None:
                wanted[name] = text
        found = [item for value in held.values() if value for item in json.loads(value).items()]
        assert sorted((name, json.loads(text)) for name, text in wanted.items()) == sorted(found)
        assert all(len(value) <= 150 for value in held.values())


# ------------------------------------------------------------------------------------------- the body's turns


async def test_an_event_that_breaks_the_centre_costs_only_itself() -> None:
    """A defect that one event brings out is told, and the others are taken."""
    centre = FaultCentre(cast("KubeClient", None))
    told: list[JobFaults] = []
    forget = centre.listen(told.append)
    centre.listen(lambda _view: 1 / 0)  # type: ignore[arg-type]
    centre._started.set()
    with structlog.testing.capture_logs() as logs:
        centre.tell(cast("Event", "nonsense"))
        centre.tell(JobSeen(sample_job()))
        await asyncio.sleep(0)

        assert ["job-a"] == [view.job_id for view in told]
        assert {"fault_events_broke", "fault_event_left_out", "fault_listener_broke"} == {
            log["event"] for log in logs if log["log_level"] == "error"
        }
        forget()
        centre.tell(DeviceInfoSeen("node-1", read_device_info(device_info([fault()]))))
        await asyncio.sleep(0)
    assert 1 == len(told)
    assert Health.UNHEALTHY == centre.view("job-a").health
    assert Health.HEALTHY == centre.view("nobody").health
    assert ["job-a"] == [view.job_id for view in centre.views()]
    assert centre._timer is not None
    centre._timer.cancel()


@pytest.mark.looptime
async def test_the_centre_wakes_when_it_asked_to() -> None:
    """A fault that happened once is gone five seconds later, with nobody looking in between."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    centre = FaultCentre(cast("KubeClient", None), clock=lambda: T0 + loop.time() - began)
    told: list[tuple[float, Health]] = []
    centre.listen(lambda view: told.append((loop.time() - began, view.health)))
    centre._started.set()
    centre.tell(JobSeen(sample_job()))
    assert (0, True) == _answer(centre.send_public(message(assertion="once")))
    await asyncio.sleep(30)

    assert [(0.0, Health.UNHEALTHY), (5.0, Health.HEALTHY)] == [(round(at, 3), how) for at, how in told]
    assert centre._timer is not None
    centre._timer.cancel()


def _answer(answer: tuple[int, str]) -> tuple[int, bool]:
    return answer[0], bool(answer[1])


def test_a_request_may_be_a_dataclass() -> None:
    """As the wire's messages are, with tuples for lists."""
    centre = FaultCentre(cast("KubeClient", None))
    made = message()
    entry = {**made["faults"][0], "influence": ({"nodeName": "n", "deviceIds": (0,)},)}
    head = {name: made[name] for name in ("id", "timestamp", "version", "resource")}
    request = dataclasses.make_dataclass("Request", [*head, "faults"])(**head, faults=(entry,))
    centre._feed.soon = lambda: None

    assert (0, "public fault accepted") == centre.send_public(request)
    assert 409 == centre.send_public(None)[0]
    assert [0] * 99 + [410] == [centre.send_public(request)[0] for _ in range(100)]


def test_a_status_goes_on_from_the_last_process() -> None:
    """A job that was running and lacks a pod has failed, also for a plane that has just started."""
    wanted: list[tuple[str, Any]] = []

    class Maps:
        def want(self, _namespace: str, name: str, content: Any) -> None:
            wanted.append((name, content.data))

    reader, raw = JobReader(), raw_job(1)
    found = reader.see_job(raw, [pod("master", 0), pod("worker", 0, phase="Pending")], lambda _node: "")
    assert found is not None
    for before, after in (("running", "failed"), ("pending", "pending")):
        publisher = Publisher(cast("ConfigMaps", Maps()), PlaneNames())
        publisher.restore({"job_id": "u", "job_status": before})
        publisher.job(found.facts, T0)
        assert after == wanted[-1][1]["job_status"]
    publisher.restore({"job_id": "x", "job_status": "?", "deleteTime": "?"})
