"""The fault centre on a real API server: what kubectl applies is what views and ConfigMaps show."""

import asyncio
import json
import time
from typing import Any

import pytest
import structlog
import yaml

from taskd.core.faults.events import TimePassed
from taskd.core.faults.public import Code
from taskd.core.faults.view import Health
from taskd.testing.kube import Nodes
from tests.core.faults.scenes import device_info, fault, message
from tests.kube.plane.ground import JOBS, Ground


def now_fault(
    chip: int = 0, code: str = "81B38009", level: str = "RestartNPU", **more: Any
) -> dict[str, Any]:
    return fault(chip, code, level, time.time(), **more)


async def ready(ground: Ground) -> None:
    """Wait until both pods run and the centre knows."""
    await ground.until(lambda: {0, 1} == {pod.node_rank for pod in _places(ground)})


def _places(ground: Ground) -> tuple[Any, ...]:
    assert ground.centre is not None
    job = ground.centre.state.jobs.get(ground.job_id)
    return () if job is None else job.sight.pods


async def test_a_fault_is_in_the_jobs_view_at_once(
    ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a second from the apply; the figure is printed. And it is gone when the device plugin says so."""
    ground.submit()
    async with ground.plane():
        await ready(ground)
        began = time.monotonic()
        await asyncio.to_thread(ground.devices, 1, now_fault(3))
        ended = time.monotonic()
        await ground.until(lambda: [(11, "81B38009")] == ground.ranks())
        by_kubectl = next(at for at, view in ground.told if view.ranks) - began

        path = f"/api/v1/namespaces/{ground.namespace}/configmaps/mindx-dl-deviceinfo-{ground.nodes[1]}"
        waits = []
        for number in range(20):
            faults = [now_fault(number % 8)] if number % 2 else []
            count = len(ground.told)
            sent = time.monotonic()
            await asyncio.to_thread(ground.kube.api.patch, path, {"data": device_info(faults)})
            await ground.until(lambda seen=count: len(ground.told) > seen)  # type: ignore[misc]
            waits.append(ground.told[count][0] - sent)
        waits.sort()
        with capsys.disabled():
            print(
                f"\nfault centre: kubectl apply (took {ended - began:.3f} s) to view {by_kubectl:.3f} s; "
                f"patch to view, 20 times: median {waits[10] * 1000:.1f} ms, worst {waits[-1] * 1000:.1f} ms"
            )
        assert by_kubectl < ended - began + 2
        assert waits[10] < 0.5

        view = ground.view()
        assert (Health.UNHEALTHY, ground.nodes[1]) == (view.health, view.nodes[0].node)
        await asyncio.to_thread(ground.devices, 1)
        await ground.until(lambda: Health.HEALTHY == ground.view().health)


async def test_cluster_info_is_what_the_scheduler_reads(ground: Ground) -> None:
    """One entry for each node, with the chip in its lists; and it comes back when the fault is gone."""
    ground.submit()
    nodes = [f"mindx-dl-deviceinfo-{name}" for name in ground.nodes]
    async with ground.plane() as centre:
        await ready(ground)
        await asyncio.to_thread(ground.devices, 0)
        await asyncio.to_thread(ground.devices, 1, now_fault(3, "A,B"))
        name = "cluster-info-device-0"

        def shown() -> dict[str, Any]:
            text = ground.data(name).get(name, "")
            found: dict[str, Any] = json.loads(text) if text else {}
            return found

        await ground.until(lambda: sorted(nodes) == sorted(shown()))
        await ground.until(
            lambda: "Ascend910-3" == _lists(shown(), nodes[1])["huawei.com/Ascend910-Unhealthy"]
        )
        entry = shown()[nodes[1]]
        assert nodes[1] == entry["CmName"]
        assert "A,B" == json.loads(_lists(shown(), nodes[1])["huawei.com/Ascend910-Fault"])[0]["fault_code"]
        found = ground.config_map(name)
        assert found is not None
        assert "true" == found["metadata"]["labels"]["mx-consumer-volcano"]
        assert [name] == list(found["data"])

        await asyncio.to_thread(ground.devices, 1)
        await ground.until(lambda: "" == _lists(shown(), nodes[1])["huawei.com/Ascend910-Unhealthy"])
        writes = centre.maps.writes
        await asyncio.to_thread(ground.devices, 1)
        await asyncio.to_thread(ground.devices, 1, now_fault(0, "X", "NotHandleFault"))
        await ground.until(lambda: "NotHandleFault" in str(shown()))
        assert writes + 1 == centre.maps.writes, "a report that says nothing new costs no write"


def _lists(shown: dict[str, Any], node: str) -> dict[str, str]:
    found: dict[str, str] = shown[node]["DeviceList"]
    return found


async def test_a_memory_error_is_recoverys_business_first(ground: Ground) -> None:
    """With `retry` the rank is named at once, as kind 0, and the scheduler hears of it ten seconds later."""
    ground.submit(labels={"fault-scheduling": "grace"}, annotations={"recover-strategy": "retry"})
    name, node = "cluster-info-device-0", f"mindx-dl-deviceinfo-{ground.nodes[0]}"

    def unhealthy() -> str:
        text = ground.data(name).get(name) or "{}"
        return _lists(json.loads(text), node)["huawei.com/Ascend910-Unhealthy"] if node in text else "?"

    def kinds() -> list[tuple[int, str, str]]:
        return [(rank.rank, rank.kind.value, rank.code) for rank in ground.view().ranks]

    async with ground.plane() as centre:
        await ready(ground)
        await asyncio.to_thread(ground.devices, 0, now_fault(6, "80E01801", "RestartBusiness"))
        await ground.until(lambda: [(6, "0", "80E01801")] == kinds())
        await ground.until(lambda: "" == unhealthy())
        ground.clock.ahead_s = 11.0
        centre.tell(TimePassed())
        await ground.until(lambda: [(6, "1", "80E01801")] == kinds())
        await ground.until(lambda: "Ascend910-6" == unhealthy())
    ground.told.clear()
    async with ground.plane():
        assert [(6, "1", "80E01801")] == kinds(), "a new process knows how old the fault is"


async def test_a_jobs_summary_follows_it(ground: Ground, nodes: Nodes) -> None:
    """Running with all its servers; failed with its pod; told as deleted with the job."""
    async with ground.plane():
        await asyncio.to_thread(ground.submit)

        def shown(key: str) -> str:
            return ground.data("job-summary-job").get(key, "")

        await ground.until(lambda: "running" == shown("job_status"))
        table = json.loads(shown("hccl.json"))
        assert ("complete", "2", 1) == (table["status"], table["server_count"], table["total"])
        assert [f"job-{kind}-0" for kind in ("master", "worker")] == [
            s["pod_name"] for s in table["server_list"]
        ]
        assert ["8", "15"] == [table["server_list"][1]["device"][index]["rank_id"] for index in (0, 7)]
        assert ground.nodes == [server["server_name"] for server in table["server_list"]]
        labels = (ground.config_map("job-summary-job") or {})["metadata"]["labels"]
        assert ("true", "ascend-910") == (labels["outside-job-info"], labels["ring-controller.atlas"])
        assert (ground.job_id, "add", "") == (shown("job_id"), shown("operator"), shown("deleteTime"))

        await asyncio.to_thread(nodes.exit, ground.namespace, "job-worker-0", 1)
        await ground.until(lambda: "failed" == shown("job_status"))
        assert shown("deleteTime")

        await asyncio.to_thread(ground.kube.api.delete, f"{JOBS.format(ground.namespace)}/job")
        await ground.until(lambda: [ground.job_id] == ground.gone)
        await ground.until(lambda: "delete" == shown("operator"))


async def test_a_wrong_check_code_changes_nothing_and_says_so(ground: Ground) -> None:
    """Neither does broken JSON; the last good word stays, and the log names ConfigMap and reason."""
    ground.submit()
    with structlog.testing.capture_logs() as logs:
        async with ground.plane():
            await ready(ground)
            await asyncio.to_thread(ground.devices, 0, now_fault(2))
            await ground.until(lambda: [(2, "81B38009")] == ground.ranks())
            before, told = ground.view(), len(ground.told)
            wrong = device_info([now_fault(5)])
            outer = json.loads(wrong["DeviceInfoCfg"])
            outer["DeviceInfo"]["UpdateTime"] += 1
            name = f"mindx-dl-deviceinfo-{ground.nodes[0]}"
            for bad, why in ((json.dumps(outer), "check code"), ("{", "not JSON")):
                await asyncio.to_thread(ground.apply, name, {"DeviceInfoCfg": bad})
                await ground.until(lambda why=why: any(why in str(log.get("why")) for log in logs))  # type: ignore[misc]

            assert before == ground.view()
            assert told == len(ground.told)
            refused = [log for log in logs if log["event"] == "fault_input_refused"]
            assert {f"device info of {ground.nodes[0]}"} == {log["about"] for log in refused}


async def test_a_public_fault_outlives_the_plane(ground: Ground) -> None:
    """By request or by ConfigMap; a new process has it again, and a recovery ends it for good."""
    ground.submit()
    sent = round(time.time() * 1000)
    where = [{"nodeName": ground.nodes[0], "deviceIds": [4]}]
    request = {**message(influence=where, faultTime=sent), "timestamp": sent}
    carrier = {**message(influence=[{**where[0], "deviceIds": [6]}], faultId="by-config-map", faultTime=sent)}
    carrier["timestamp"] = sent
    async with ground.plane() as centre:
        await ready(ground)
        assert Code.OK == centre.send_public(request)[0]
        assert Code.PARAMETER == centre.send_public({**request, "version": "2.0"})[0]
        assert Code.RATE == centre.send_public({**request, "resource": "nobody"})[0]
        await asyncio.to_thread(
            ground.apply, "some-fault", {"PublicFault": json.dumps(carrier)}, "mc-consumer-publicfault"
        )
        await ground.until(lambda: [(4, "220001001"), (6, "220001001")] == ground.ranks())
        await ground.until(
            lambda: '{"publicFaultNum":2}' == ground.data("statistic-fault-info").get("FaultNum")
        )
    async with ground.plane() as centre:
        assert [(4, "220001001"), (6, "220001001")] == ground.ranks()
        await asyncio.to_thread(
            ground.kube.kubectl, "-n", ground.namespace, "delete", "configmap", "some-fault"
        )
        ground.clock.ahead_s = 10.0
        recovery = {**message(influence=where, assertion="recover", faultTime=sent), "timestamp": sent}
        assert Code.OK == centre.send_public(recovery)[0]
        await ground.until(lambda: [(6, "220001001")] == ground.ranks())
        await ground.until(
            lambda: '{"publicFaultNum":1}' == ground.data("statistic-fault-info").get("FaultNum")
        )


async def test_a_chip_kept_apart_is_let_back_by_deleting_its_entry(ground: Ground) -> None:
    """With kubectl, in the ConfigMap that the plane keeps for it; and it outlives the plane."""
    ground.submit()
    policy = {
        "enabled": True,
        "separate": {"fault_window_hours": 24, "fault_threshold": 1},
        "release": {"fault_free_hours": 48},
    }
    ground.apply("clusterd-config-cm", {"manually_separate_policy.conf": yaml.safe_dump(policy)}, "x")
    name = "clusterd-manual-info-cm"
    async with ground.plane() as centre:
        await ready(ground)
        await asyncio.to_thread(ground.devices, 0, now_fault(2, "F"))
        await ground.until(lambda: [(2, "F")] == ground.ranks())
        await asyncio.to_thread(ground.devices, 0)
        await ground.until(lambda: [] == ground.ranks())
        ground.clock.ahead_s = 31.0
        centre.tell(TimePassed())
        await ground.until(lambda: [(2, "")] == ground.ranks())
        await ground.until(lambda: ground.nodes[0] in ground.data(name))
        assert ["Ascend910-2"] == json.loads(ground.data(name)[ground.nodes[0]])["Total"]
    async with ground.plane() as centre:
        assert [(2, "")] == ground.ranks()
        patch = json.dumps({"data": {ground.nodes[0]: None}})
        await asyncio.to_thread(
            ground.kube.kubectl,
            "-n",
            ground.namespace,
            "patch",
            "configmap",
            name,
            "--type=merge",
            "-p",
            patch,
        )
        await ground.until(lambda: [] == ground.ranks())
        await ground.until(lambda: ground.config_map(name) is None)


async def test_a_lost_node_is_a_fault_of_its_ranks(ground: Ground, nodes: Nodes) -> None:
    """As soon as Kubernetes says so, and until it says otherwise."""
    ground.submit()
    async with ground.plane():
        await ready(ground)
        await asyncio.to_thread(nodes.lose, ground.nodes[1])
        await ground.until(lambda: [(rank, "") for rank in range(8, 16)] == ground.ranks())
        await asyncio.to_thread(nodes.restore, ground.nodes[1])
        await ground.until(lambda: [] == ground.ranks())


async def test_pods_are_labelled_for_the_scheduler(ground: Ground) -> None:
    """A lost link with a failed collective sets its pod apart."""
    ground.submit()
    async with ground.plane():
        await ready(ground)
        await asyncio.to_thread(ground.devices, 0, now_fault(1, "81078603", "NotHandleFault"))
        await asyncio.to_thread(ground.devices, 1, now_fault(1, "8C1F860B", "NotHandleFault"))
        path = f"/api/v1/namespaces/{ground.namespace}/pods/job-master-0"
        await ground.until(
            lambda: "Separate" == ground.kube.api.get(path)["metadata"]["labels"].get("fault-type")
        )
        assert Health.UNHEALTHY == ground.view().health


async def test_what_an_earlier_process_left_behind_is_removed(ground: Ground) -> None:
    """A summary of a job that is gone, and a part of cluster-info that is not needed; nothing of others."""
    mine = {"app.kubernetes.io/managed-by": "taskd-plane"}
    for name, labels in (
        ("job-summary-old", {**mine, "outside-job-info": "true"}),
        ("cluster-info-device-7", {**mine, "mx-consumer-volcano": "true"}),
        ("job-summary-theirs", {"outside-job-info": "true"}),
    ):
        body = {"metadata": {"name": name, "labels": labels}, "data": {name: "{}"}}
        ground.kube.api.create(f"/api/v1/namespaces/{ground.namespace}/configmaps", body)
    async with ground.plane():
        await ground.until(lambda: ground.config_map("job-summary-old") is None)
        await ground.until(lambda: ground.config_map("cluster-info-device-7") is None)
        assert ground.config_map("job-summary-theirs") is not None
