"""The client against a real API server: what is sent is understood, what comes back is read rightly."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from taskd.kube.client import KubeClient
from taskd.kube.config import load_config
from taskd.kube.errors import ApiError, ApiUnreachable
from taskd.kube.objects import Json
from taskd.kube.resources import (
    ASCENDJOB,
    CONFIG_MAP,
    CRD,
    DEPLOYMENT,
    EVENT,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    POD_GROUP,
    SERVICE,
    STATEFUL_SET,
    Resource,
)
from taskd.kube.transport import USER_AGENT, Limits
from taskd.testing.kube import Cluster, ControlPlane


def manifest(name: str, **spec: Any) -> Json:
    """A pod that nobody schedules, so that it is there at once and stays as it is."""
    return {
        "metadata": {"name": name, "labels": {"group": "g"}},
        "spec": {
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "image"}],
            **spec,
        },
    }


@pytest.fixture
async def client(kube: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_config(kube.kubeconfig)) as made:
        yield made


async def test_a_brief_answer_has_the_metadata_alone(client: KubeClient, namespace: str) -> None:
    """Name, UID, version, labels and owner are what a cache needs of a pod that was just made."""
    brief = await client.create(POD, namespace, manifest("short", nodeName="somewhere"), brief=True)
    whole = await client.get(POD, namespace, "short")

    assert whole.metadata == brief.metadata
    assert ("somewhere", "") == (whole.spec.node_name, brief.spec.node_name)
    with pytest.raises(ApiError) as taken:
        await client.create(POD, namespace, manifest("short"), brief=True)
    assert taken.value.already_exists


async def test_an_object_from_birth_to_death(client: KubeClient, namespace: str) -> None:
    """Created, read, found by label, gone; names taken and names unknown are told apart."""
    made = await client.create(POD, namespace, manifest("a"))

    assert ("a", namespace, "Pending") == (made.metadata.name, made.metadata.namespace, made.status.phase)
    assert made.metadata.uid
    assert made == await client.get(POD, namespace, "a")
    with pytest.raises(ApiError) as taken:
        await client.create(POD, namespace, manifest("a"))
    assert taken.value.already_exists
    assert not taken.value.is_conflict
    assert [made] == (await client.list(POD, namespace, label_selector="group=g")).items
    assert [] == (await client.list(POD, namespace, label_selector="group=other")).items

    assert (await client.delete(POD, namespace, "a", uid=made.metadata.uid)).gone
    with pytest.raises(ApiError) as gone:
        await client.get(POD, namespace, "a")
    assert gone.value.is_not_found


async def test_a_deletion_spares_the_namesake(client: KubeClient, namespace: str) -> None:
    """The UID in the request is that of the predecessor: the server refuses."""
    first = await client.create(POD, namespace, manifest("a"))
    await client.delete(POD, namespace, "a", grace_period_s=0)
    second = await client.create(POD, namespace, manifest("a"))
    with pytest.raises(ApiError) as spared:
        await client.delete(POD, namespace, "a", uid=first.metadata.uid)

    assert spared.value.is_conflict
    assert second.metadata.uid == (await client.get(POD, namespace, "a")).metadata.uid


async def test_what_is_only_marked_for_deletion_is_not_gone(client: KubeClient, namespace: str) -> None:
    """A finalizer keeps it; the answer is the terminating object. Other kinds answer with a Status."""
    kept = manifest("a")
    kept["metadata"]["finalizers"] = ["example.org/wait"]
    await client.create(POD, namespace, kept)
    marked = await client.delete(POD, namespace, "a", grace_period_s=0)

    assert not marked.gone
    assert marked.object is not None
    assert marked.object.metadata.is_terminating

    await client.patch(POD, namespace, "a", {"metadata": {"finalizers": None}})
    with pytest.raises(ApiError):
        await client.get(POD, namespace, "a")

    await client.create(CONFIG_MAP, namespace, {"metadata": {"name": "c"}, "data": {"k": "v"}})
    assert (await client.delete(CONFIG_MAP, namespace, "c", propagation="Background")).gone


async def test_a_pod_on_a_node_ends_gracefully(client: KubeClient, namespace: str) -> None:
    """It is terminating, not gone, until its kubelet (here: a deletion without grace) says so."""
    made = await client.create(POD, namespace, manifest("a", nodeName="no-such-node"))
    marked = await client.delete(POD, namespace, "a", uid=made.metadata.uid, grace_period_s=30)

    assert not marked.gone
    assert marked.object is not None
    assert 30 == marked.object.metadata.deletion_grace_period_seconds
    assert (await client.delete(POD, namespace, "a", uid=made.metadata.uid, grace_period_s=0)).gone


async def test_server_side_apply_owns_its_fields(client: KubeClient, namespace: str) -> None:
    """Applied twice the same it changes nothing; another manager's field is a conflict unless forced."""
    service = {"spec": {"selector": {"a": "b"}, "ports": [{"name": "p", "port": 2222}]}}
    first = await client.apply(SERVICE, namespace, "s", service, field_manager="taskd")
    again = await client.apply(SERVICE, namespace, "s", service, field_manager="taskd")

    assert first.metadata.resource_version == again.metadata.resource_version
    assert [2222] == [port.port for port in first.spec.ports]
    assert first.spec.cluster_ip

    other = {"spec": {"selector": {"a": "c"}}}
    with pytest.raises(ApiError) as refused:
        await client.apply(SERVICE, namespace, "s", other, field_manager="other", force=False)
    assert refused.value.is_conflict
    taken = await client.apply(SERVICE, namespace, "s", other, field_manager="other", force=True)
    assert {"a": "c"} == taken.spec.selector


async def test_status_is_patched_apart(client: KubeClient, namespace: str) -> None:
    """The status subresource takes a merge patch, and the condition reaches the view."""
    await client.create(POD, namespace, manifest("a"))
    condition = {"type": "Ready", "status": "False", "reason": "Because"}
    patched = await client.patch(
        POD, namespace, "a", {"status": {"phase": "Failed", "conditions": [condition]}}, subresource="status"
    )

    assert ("Failed", "Because") == (patched.status.phase, patched.status.conditions[0].reason)

    stale = {"metadata": {"resourceVersion": "1"}, "status": {"phase": "Running"}}
    with pytest.raises(ApiError) as refused:
        await client.patch(POD, namespace, "a", stale, subresource="status")
    assert refused.value.is_conflict


async def test_a_wrong_object_is_invalid_and_says_why(client: KubeClient, namespace: str) -> None:
    """The causes name the fields."""
    wrong = manifest("a")
    wrong["spec"]["containers"] = []
    with pytest.raises(ApiError) as refused:
        await client.create(POD, namespace, wrong)

    assert refused.value.is_invalid
    assert ["spec.containers"] == [cause["field"] for cause in refused.value.details["causes"]]


async def test_a_namespace_that_ends_says_so(kube: Cluster, client: KubeClient) -> None:
    """Creation there is hopeless, which is something else than forbidden."""
    with kube.namespace() as name:
        await client.create(CONFIG_MAP, name, {"metadata": {"name": "c", "finalizers": ["example.org/wait"]}})
        await client.delete(NAMESPACE, None, name)
        with pytest.raises(ApiError) as refused:
            await client.create(POD, name, manifest("a"))
        await client.patch(CONFIG_MAP, name, "c", {"metadata": {"finalizers": None}})

    assert refused.value.namespace_terminating


async def test_discovery_knows_what_the_cluster_serves(client: KubeClient) -> None:
    """Built-in kinds, and groups, versions and kinds that are not there."""
    for there in (POD, SERVICE, NODE, LEASE, EVENT, DEPLOYMENT, STATEFUL_SET, CRD):
        assert await client.serves(there), there
    for group, plural in (("nowhere.example.org", "pods"), ("apps", "nothings")):
        absent: Resource[Json] = Resource(group, "v1", plural, "X", namespaced=True, model=dict)
        assert not await client.serves(absent)


async def test_a_list_in_pages_is_the_list(client: KubeClient, namespace: str) -> None:
    """Small pages, the same result, one version."""
    await asyncio.gather(*(client.create(POD, namespace, manifest(f"p{n:02}")) for n in range(23)))
    listing = await client.list(POD, namespace, page=5)

    assert [f"p{n:02}" for n in range(23)] == [p.metadata.name for p in listing.items]
    assert listing.resource_version.isdecimal()


async def test_a_watch_tells_what_happens(client: KubeClient, namespace: str) -> None:
    """From the list's version on: added, modified, deleted; and it ends when its time is up."""
    version = (await client.list(POD, namespace)).resource_version

    async def act() -> None:
        await client.create(POD, namespace, manifest("a"))
        await client.patch(POD, namespace, "a", {"metadata": {"labels": {"x": "y"}}})
        await client.delete(POD, namespace, "a", grace_period_s=0)

    acting = asyncio.create_task(act())
    events = client.watch(POD, namespace, resource_version=version, timeout_s=3)
    async with asyncio.timeout(10), contextlib.aclosing(events) as stream:
        seen = [
            (event.type, event.object.metadata.name) async for event in stream if event.object is not None
        ]
    await acting

    kinds = [kind for kind, _ in seen]
    assert ("ADDED", "MODIFIED", "DELETED") == (kinds[0], kinds[1], kinds[-1])
    assert {"a"} == {name for _, name in seen}


async def test_somebody_without_rights_is_forbidden(kube: ControlPlane, namespace: str) -> None:
    """The refusal names who may not do what."""
    user = kube.add_user("nobody-at-all", rules=[])
    async with KubeClient(load_config(user.kubeconfig)) as client:
        with pytest.raises(ApiError, match="nobody-at-all") as refused:
            await client.list(POD, namespace)

    assert refused.value.is_forbidden


async def test_the_audit_log_has_our_name(kube: ControlPlane, client: KubeClient, namespace: str) -> None:
    """One create is one write, under our User-Agent."""
    mark = kube.audit.mark()
    await client.create(POD, namespace, manifest("a"))
    writes = kube.audit.writes(since=mark, user_agent=USER_AGENT, namespace=namespace)

    assert [("create", "pods", "a")] == [(w.verb, w.resource, w.name) for w in writes]


async def test_a_stopped_server_is_unreachable_and_its_return_needs_nothing(
    kube: ControlPlane, namespace: str
) -> None:
    """Hanging costs the limit; afterwards the same client works."""
    async with KubeClient(load_config(kube.kubeconfig), Limits(request_s=0.5)) as client:
        await client.list(POD, namespace)
        kube.apiserver.pause()
        try:
            with pytest.raises(ApiUnreachable):
                await client.list(POD, namespace)
        finally:
            kube.apiserver.resume()
        await asyncio.sleep(0.5)
        assert [] == (await client.list(POD, namespace)).items


def test_the_resources_have_their_versions() -> None:
    """Group and version as users write them in YAML."""
    assert "mindxdl.gitee.com/v1" == ASCENDJOB.api_version
    assert "scheduling.volcano.sh/v1beta1" == POD_GROUP.api_version
    assert "v1" == POD.api_version
