"""ConfigMaps of a job that several programs write, on a real API server."""

from dataclasses import dataclass

import pytest

from taskd.core.faults.texts import reset
from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.kube.errors import ApiError
from taskd.plane.jobmaps import JobConfigMaps
from tests.kube.plane.ground import Ground

NAME = "reset-config-job"


@dataclass(frozen=True)
class Job:
    job_id: str
    name: str
    namespace: str


def read(data: object) -> reset.Reset:
    found = reset.read_reset(data)  # type: ignore[arg-type]
    assert isinstance(found, reset.Reset)
    return found


async def test_a_change_is_made_over_what_was_read(ground: Ground) -> None:
    """Created with its owner; changed; refused where the scheduler was faster; and what it wrote stays."""
    job = Job(ground.submit(), "job", ground.namespace)
    async with KubeClient(load_config(ground.kube.kubeconfig)) as client:
        maps = JobConfigMaps(client)
        assert await maps.read(ground.namespace, NAME) is None
        await maps.write(job, NAME, reset.flush(reset.Reset(), 5).data())
        made = ground.config_map(NAME)
        assert made is not None
        assert ("true", job.job_id) == (
            made["metadata"]["labels"]["reset"], made["metadata"]["ownerReferences"][0]["uid"],
        )  # fmt: skip

        found = read(await maps.read(ground.namespace, NAME))
        ground.kube.kubectl(
            "-n", ground.namespace, "patch", "configmap", NAME, "-p", '{"data":{"restartType":"hotReset"}}'
        )  # fmt: skip
        with pytest.raises(ApiError) as refused:
            await maps.write(job, NAME, reset.clear(found, 6).data())
        assert refused.value.is_conflict

        found = read(await maps.read(ground.namespace, NAME))
        assert reset.RestartType.HOT == found.restart_type
        await maps.write(job, NAME, reset.name_faults(found, [8], 7, in_place=True, per_node=8).data())
        data = ground.data(NAME)
        assert ("hotReset", '"RankId":8' in data["reset.json"]) == (data["restartType"], True)
        after = read(data)
        assert after.restart_fault_process
        assert after.data()["checkCode"] == data["checkCode"]


async def test_one_that_somebody_else_has_made_is_not_overwritten(ground: Ground) -> None:
    """The user's job YAML may have been faster."""
    job = Job(ground.submit(), "job", ground.namespace)
    async with KubeClient(load_config(ground.kube.kubeconfig)) as client:
        maps = JobConfigMaps(client)
        assert await maps.read(ground.namespace, NAME) is None
        ground.apply(NAME, {"reset.json": "", "checkCode": ""}, "reset")
        with pytest.raises(ApiError) as refused:
            await maps.write(job, NAME, reset.Reset().data())
        assert refused.value.already_exists
        assert reset.Reset() == read(await maps.read(ground.namespace, NAME))
        await maps.write(job, NAME, reset.Reset(retry_time=3).data())
        assert 3 == read(ground.data(NAME)).retry_time
