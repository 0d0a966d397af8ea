"""The objects that only help a job: when they are asked for, and what is made of what is found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from taskd.core.acjob import names
from taskd.kube.client import KubeClient
from taskd.kube.errors import ApiError
from taskd.kube.objects import ConfigMap, ObjectMeta, OwnerReference, Service
from taskd.operator.cluster import Cluster
from taskd.operator.extras import FRESH_S, Extras
from tests.core.acjob.samples import make_job

JOB = make_job(annotations={"recover-strategy": "recover"})
RESET = "reset-config-job"


@dataclass
class Server:
    """An API server of two kinds, which counts what it is asked."""

    objects: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    version: int = 0

    async def get(self, _resource: object, _namespace: str, name: str) -> Any:
        self.asked.append(f"get {name}")
        if name not in self.objects:
            raise ApiError(404, "NotFound", name)
        return self.objects[name]

    async def create(self, _resource: object, _namespace: str, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        self.asked.append(f"create {name}")
        self.objects[name] = ConfigMap(metadata=ObjectMeta(name=name))

    async def apply(
        self, _resource: object, namespace: str, name: str, manifest: dict[str, Any], **_options: object
    ) -> Service:
        self.asked.append(f"apply {name}")
        self.version += 1
        labels = manifest["metadata"]["labels"]
        version = str(self.version)
        meta = ObjectMeta(
            name=name, namespace=namespace, uid=version, resource_version=version, labels=labels
        )
        self.objects[name] = Service(metadata=meta)
        return Service(metadata=meta)

    def take(self) -> list[str]:
        """What it was asked since the last time."""
        asked, self.asked = self.asked, []
        return asked


@dataclass
class Scene:
    """A server, and who makes helping objects there, at a time that the test sets."""

    server: Server = field(default_factory=Server)
    now: float = 0.0
    extras: Extras = field(init=False)

    def __post_init__(self) -> None:
        self.extras = Extras(Cluster(cast("KubeClient", self.server)), clock=lambda: self.now)

    def known(self) -> bool:
        return self.extras.known(JOB.uid, JOB.namespace)


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def test_what_was_made_just_now_is_not_asked_for_again(scene: Scene) -> None:
    """The first pods of a job cost no read more; later ones one for each ConfigMap, however many pods."""
    assert not scene.known()
    assert None is await scene.extras.sync(JOB)
    assert ["get acjob-pods", "apply acjob-pods", f"get {RESET}", f"create {RESET}"] == scene.server.take()
    assert scene.known()
    assert None is await scene.extras.freshen(JOB)
    assert [] == scene.server.take()
    scene.now += FRESH_S
    assert None is await scene.extras.freshen(JOB)
    assert [f"get {RESET}"] == scene.server.take()


async def test_what_went_is_made_again(scene: Scene) -> None:
    """The Service as soon as the cache knows, a ConfigMap with the next pods."""
    await scene.extras.sync(JOB)
    (service,) = scene.extras.cluster.services.store
    scene.extras.cluster.services.assume_deleted(service.metadata.uid)
    assert not scene.known()
    scene.server.objects.clear()
    scene.server.take()
    assert None is await scene.extras.freshen(JOB)
    assert ["get acjob-pods", "apply acjob-pods", f"get {RESET}", f"create {RESET}"] == scene.server.take()
    assert scene.known()


@pytest.mark.parametrize(
    ("uid", "kind", "waits"),
    [("u-0", names.KIND, True), ("u-1", names.KIND, False), ("u-0", "Application", False)],
)
async def test_only_what_an_earlier_job_left_is_waited_for(
    scene: Scene, uid: str, kind: str, waits: bool
) -> None:
    """One of ours, and one that another controller made for the user, are used as they are."""
    owner = OwnerReference(api_version=names.API_VERSION, kind=kind, name="job", uid=uid, controller=True)
    scene.server.objects[RESET] = ConfigMap(metadata=ObjectMeta(name=RESET, owner_references=(owner,)))
    failure = await scene.extras.sync(JOB)
    assert waits == (failure is not None and failure.reason == names.SYNC_CONFIG_MAP_FAILED)
    assert waits != scene.known()
    assert f"create {RESET}" not in scene.server.take()


async def test_a_service_of_that_name_that_is_somebody_elses_is_left_to_him(scene: Scene) -> None:
    """The job goes on without host names, and does not ask again and again."""
    scene.server.objects["acjob-pods"] = Service(metadata=ObjectMeta(name="acjob-pods"))
    assert None is await scene.extras.sync(replace(JOB, annotations={}))
    assert ["get acjob-pods"] == scene.server.take()
    assert scene.known()
