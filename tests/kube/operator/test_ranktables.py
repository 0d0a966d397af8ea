"""Rank tables as users meet them: on odd storage, over the life of a job, and where they cannot be had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, Nodes, VolcanoStandIn
from tests.kube.operator.site import JOBS, Controller, Json, Site, until
from tests.kube.operator.small import small
from tests.kube.operator.town import NPU, job

MAPS = "/api/v1/namespaces/{}/configmaps"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The shared directory."""
    found = tmp_path / "tables"
    found.mkdir()
    return found


@pytest.fixture
def filing(site: Site, tables: Path, tmp_path: Path) -> Iterator[Controller]:
    """A controller that writes rank tables to files; the test starts it."""
    flags = ("--no-leader-elect", "--rank-table-dir", str(tables))
    made = Controller(site.kube.kubeconfig, site.namespace, tmp_path / "controller.log", *flags)
    yield made
    assert 0 == made.stop(), made.log.read_text()
    assert "look_broke" not in made.log.read_text(), made.log.read_text()


def asking(name: str, where: str = "file", devices: dict[str, int] | None = None) -> Json:
    """A job that asks for a rank table."""
    return job(name, devices=devices, annotations={"taskd.io/rank-table": where})


def told(site: Site, name: str, reason: str) -> list[str]:
    """The Warning events of this reason."""
    return [said for kind, why, said in site.events(name) if (kind, why) == ("Warning", reason)]


def test_a_table_that_cannot_be_written_concerns_its_own_job_only(
    site: Site, filing: Controller, tables: Path, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """An Event of that job says why; other jobs run, and it is tried again until it is possible."""
    nodes.add(1, capacity={NPU: 64})
    folder = tables / f"{site.namespace}.odd"
    folder.mkdir()
    os.mkfifo(folder / "hccl.json")
    filing.start()
    site.submit(asking("odd", devices={NPU: 1}))
    until(lambda: told(site, "odd", "RankTableFailed"), say=lambda: f"{site.events('odd')}")
    assert any("not a regular file" in said for said in told(site, "odd", "RankTableFailed"))
    site.submit(small("innocent"))
    site.wait_state("innocent", "Running")
    site.wait_state("odd", "Running")

    (folder / "hccl.json").unlink()
    until((folder / "hccl.json").is_file)


def test_a_table_goes_with_its_job_and_with_no_other(
    kube: Cluster, site: Site, filing: Controller, tables: Path, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """Not with a predecessor of the same name; but also when nobody watched as the job went."""
    nodes.add(1, capacity={NPU: 64})
    filing.start()
    path = tables / f"{site.namespace}.table" / "hccl.json"
    site.submit(small("other"))
    site.submit(asking("table", devices={NPU: 1}))
    until(path.is_file)
    filing.kill()
    site.delete("table")
    until(lambda: kube.api.find(f"{JOBS.format(site.namespace)}/table") is None)
    site.submit(asking("table", devices={NPU: 1}))
    filing.start()
    site.wait_state("table", "Running")
    site.delete("other")
    until(lambda: kube.api.find(f"{JOBS.format(site.namespace)}/other") is None)
    until(path.is_file)

    (tables / f"{site.namespace}.mine").mkdir()
    (tables / f"{site.namespace}.mine" / "hccl.json").write_text("{}")
    filing.kill()
    site.delete("table")
    until(lambda: kube.api.find(f"{JOBS.format(site.namespace)}/table") is None)
    filing.start()
    until(lambda: not path.parent.exists())
    assert (tables / f"{site.namespace}.mine" / "hccl.json").is_file(), "what a user made stays"


@pytest.mark.parametrize(
    ("where", "devices", "expected"),
    [
        ("file", {NPU: 1}, "--rank-table-dir"),
        ("confgmap", {NPU: 1}, "confgmap is ignored; known are configmap, file"),
        ("configmap", None, "the job requests none"),
    ],
)
def test_a_wish_that_cannot_be_met_is_told(
    site: Site,
    controller: Controller,
    nodes: Nodes,
    volcano: VolcanoStandIn,
    where: str,
    devices: dict[str, int] | None,
    expected: str,
) -> None:
    """A Warning event says why there is no table; the job runs all the same."""
    nodes.add(1)
    site.submit(asking("job", where, devices))
    site.wait_state("job", "Running")
    (said,) = until(lambda: told(site, "job", "RankTableNotWritten"))
    assert expected in said


def test_a_table_that_somebody_deleted_is_there_for_the_next_pod(
    kube: Cluster, site: Site, controller: Controller, nodes: Nodes, volcano: VolcanoStandIn
) -> None:
    """The controller has no cache of ConfigMaps, so it looks when it makes pods."""
    nodes.add(1)
    site.submit(asking("job", "configmap", {NPU: 1}))
    site.wait_state("job", "Running")
    path = f"{MAPS.format(site.namespace)}/rings-config-job"
    until(lambda: kube.api.find(path))
    kube.api.delete(path)
    kube.api.delete(f"/api/v1/namespaces/{site.namespace}/pods/job-worker-0", grace_s=0)
    until(lambda: kube.api.find(path))
