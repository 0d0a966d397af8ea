"""The proving ground itself: what the cluster tests stand on."""

import pytest

from taskd.testing.kube import ApiError, ControlPlane, Nodes


def pod(name: str, **more: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}], **more},
    }


def test_a_user_has_exactly_the_rights_that_were_given(kube: ControlPlane, namespace: str) -> None:
    """A user with a rule for pods lists pods and is refused everything else."""
    user = kube.add_user("lister", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])

    assert [] == user.api.items(f"/api/v1/namespaces/{namespace}/pods")
    with pytest.raises(ApiError, match='User "system:serviceaccount:taskd-users:lister" cannot') as refused:
        user.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("no"))
    assert 403 == refused.value.code


def test_every_write_is_in_the_audit_log(kube: ControlPlane, namespace: str) -> None:
    """The log says who wrote what, with which answer, and counts refusals too."""
    mark = kube.audit.mark()
    agent = kube.client(user_agent="somebody/1.0")
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    agent.create(path, {"metadata": {"name": "one"}})
    with pytest.raises(ApiError):
        agent.create(path, {"metadata": {"name": "one"}})
    agent.get(f"{path}/one")

    writes = kube.audit.writes(since=mark, user_agent="somebody/")

    assert [("create", "configmaps", "one", 201), ("create", "configmaps", "one", 409)] == [
        (write.verb, write.resource, write.name or "one", write.code) for write in writes
    ]


def test_objects_survive_a_killed_api_server(kube: ControlPlane, namespace: str) -> None:
    """Kill -9 of the API server loses nothing, and clients find it at the same address."""
    kube.api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "kept"}})

    kube.restart_apiserver()

    assert kube.api.find(f"/api/v1/namespaces/{namespace}/configmaps/kept") is not None


def test_a_pod_that_is_bound_to_a_node_runs(kube: ControlPlane, nodes: Nodes, namespace: str) -> None:
    """It is Running, with an address of its own, as soon as it has a node."""
    (node,) = nodes.add(1)
    kube.api.create(f"/api/v1/namespaces/{namespace}/pods", pod("one", nodeName=node))

    found = nodes.wait_phase(namespace, "one", "Running")

    assert found["status"]["podIP"].startswith("10.")
    assert found["status"]["podIP"] != found["status"]["hostIP"]
