"""Which jobs are told at once that a node is isolated: those that keep a pod ready there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

import pytest

from taskd.core.acjob import names as acjob
from taskd.core.faults.levels import NodeLevel
from taskd.core.faults.state import Fault, NodeRecord, State
from taskd.kube.client import KubeClient
from taskd.kube.objects import ObjectMeta, OwnerReference, Pod, PodSpec
from taskd.plane.isolating import Isolation
from taskd.plane.sources import Sources

T = TypeVar("T")
JOB, NODE = "job-uid", "node-7"


class Cache(Generic[T]):
    """A cache with one object."""

    def __init__(self, thing: T) -> None:
        self.store = self
        self.thing = thing

    def __iter__(self) -> Any:
        return iter([self.thing])

    def by_uid(self, _uid: str) -> T:
        return self.thing

    def add_handler(self, handler: Callable[..., None]) -> None:
        self.handler = handler


class Played:
    """A job with a standby on a node; what is written into its status is kept."""

    def __init__(self, scheduling: str, pod_type: str) -> None:
        self.raw: dict[str, Any] = {
            "metadata": {
                "uid": JOB,
                "name": "job",
                "namespace": "default",
                "labels": {"fault-scheduling": scheduling},
                "annotations": {},
            }
        }
        owner = OwnerReference(uid=JOB, controller=True)
        metadata = ObjectMeta(
            name="job-standby-0",
            uid="pod-uid",
            annotations={acjob.POD_TYPE: pod_type},
            owner_references=(owner,),
        )
        self.jobs = Cache(self.raw)
        self.pods = Cache(Pod(metadata=metadata, spec=PodSpec(node_name=NODE)))
        self.state = State()
        self.told: list[list[str]] = []

    def listen_for_nodes(self, listener: Callable[[Iterable[str]], None]) -> Callable[[], None]:
        self.changed = listener
        return lambda: None

    async def apply(self, *where: object, **_how: object) -> None:
        status = cast("dict[str, Any]", where[3])["status"]
        self.told.append([entry["name"] for entry in status.get("isolatedNodes", [])])
        self.raw["status"] = status

    def isolate(self) -> None:
        out = Fault("Node", "Node", "", -1, "out", NodeLevel.SEPARATE, None)
        self.state = State(nodes={NODE: NodeRecord(NODE, faults=(out,))})


async def tell(play: Played, *, before: bool) -> list[list[str]]:
    if before:
        play.isolate()
    isolation = Isolation(cast("KubeClient", play), cast("Sources", play), play)
    await asyncio.sleep(0)
    if not before:
        play.isolate()
        play.changed([NODE, "node-8"])
    for _ in range(4):
        await asyncio.sleep(0)
    isolation.close()
    return play.told


@pytest.mark.parametrize("before", [False, True], ids=["", "isolated before the plane came"])
async def test_a_job_is_told_at_once_of_the_node_on_which_it_keeps_a_pod_ready(before: bool) -> None:
    assert [[NODE]] == await tell(Played("grace", acjob.STANDBY), before=before)


@pytest.mark.parametrize(("scheduling", "pod_type"), [("off", acjob.STANDBY), ("grace", "")])
async def test_other_jobs_cost_no_write(scheduling: str, pod_type: str) -> None:
    """One whose pods nobody may touch, and one that trains there: its fault has a course of its own."""
    assert [] == await tell(Played(scheduling, pod_type), before=False)
