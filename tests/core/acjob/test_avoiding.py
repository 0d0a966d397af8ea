"""New pods stay away from isolated nodes."""

from typing import Any

from taskd.core.acjob.avoiding import Avoided, read_avoided, with_avoidance

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
CLOSED = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
USERS = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


def affinity(spec: dict[str, Any]) -> Any:
    return spec["affinity"]["nodeAffinity"]


def test_a_closed_node_is_excluded() -> None:
    found = with_avoidance({"containers": []}, [Avoided("n1")], has_device=True)

    assert {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [CLOSED]}]}} == affinity(dict(found))
    assert [] == found["containers"]


def test_a_users_own_terms_stay_and_each_excludes_the_node() -> None:
    """One term is enough for the scheduler, so none may be without the exclusion."""
    spec = {
        "affinity": {"podAffinity": {}, "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [USERS, USERS]}}}
    }
    found = dict(with_avoidance(spec, [Avoided("n1")], has_device=True))

    term = {**USERS, "matchFields": [CLOSED]}
    assert {REQUIRED: {"nodeSelectorTerms": [term, term]}} == affinity(found)
    assert {} == found["affinity"]["podAffinity"]
    assert {REQUIRED: {"nodeSelectorTerms": [USERS, USERS]}} == affinity(spec), "what came in is not changed"


def test_a_node_with_a_broken_device_is_the_last_choice() -> None:
    """Its device plugin keeps the device from pods; where pods ask for none, nobody does."""
    kept = with_avoidance({}, [Avoided("n1", device_only=True)], has_device=True)
    shut = with_avoidance({}, [Avoided("n1", device_only=True)], has_device=False)

    assert {PREFERRED: [{"weight": 100, "preference": {"matchFields": [CLOSED]}}]} == affinity(dict(kept))
    assert [REQUIRED] == list(affinity(dict(shut)))


def test_without_isolated_nodes_nothing_is_added() -> None:
    spec: dict[str, Any] = {"containers": []}

    assert spec is with_avoidance(spec, (), has_device=False)


def test_the_status_is_read_leniently() -> None:
    listed = [
        {"name": "n1", "scope": "node"},
        {"name": "n2", "scope": "device"},
        {"scope": "node"},
        "n3",
        None,
    ]

    assert (Avoided("n1"), Avoided("n2", True)) == read_avoided({"status": {"isolatedNodes": listed}})
    assert () == read_avoided({"status": None}) == read_avoided(None)
