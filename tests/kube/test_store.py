"""Whatever order list, watch and our own answers come in, the store ends up with what the server has."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from taskd.kube.store import Change, Store

Json = dict[str, Any]


def made(name: str, uid: str, version: int, owner: str = "") -> Json:
    meta: Json = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(version)}
    if owner:
        meta["ownerReferences"] = [{"uid": owner, "controller": True}]
    return {"metadata": meta}


def versions(store: Store[Json]) -> dict[str, tuple[str, int]]:
    return {
        o["metadata"]["name"]: (o["metadata"]["uid"], int(o["metadata"]["resourceVersion"])) for o in store
    }


def listed(*objects: Json, version: int) -> Store[Json]:
    store: Store[Json] = Store()
    store.replace(list(objects), version, store.begin_list())
    return store


def test_an_older_event_does_not_undo_an_answer() -> None:
    """The watch is behind: what it still says of the object is passed over."""
    store = listed(made("a", "u1", 5), version=5)

    assert store.assume(made("a", "u1", 9))

    store.changed(made("a", "u1", 7))

    assert {"a": ("u1", 9)} == versions(store)


def test_an_answer_that_comes_after_the_deletion_brings_nothing_back() -> None:
    """Somebody deleted the pod before the answer to its creation arrived here."""
    store = listed(version=5)
    store.changed(made("a", "u1", 6))
    store.deleted(made("a", "u1", 7))

    assert not store.assume(made("a", "u1", 6))
    assert {} == versions(store)


def test_an_answer_from_before_the_list_brings_nothing_back() -> None:
    """Created and deleted while nobody watched: the list is newer, and does not have it."""
    store = listed(version=9)

    assert not store.assume(made("a", "u1", 6))
    assert {} == versions(store)


def test_the_deletion_of_a_predecessor_leaves_its_namesake() -> None:
    """Re-created under the same name before the watch told of the end of the first."""
    store = listed(made("a", "u1", 5), version=5)
    store.assume(made("a", "u2", 9))
    store.changed(made("a", "u1", 7))
    store.deleted(made("a", "u1", 8))

    assert {"a": ("u2", 9)} == versions(store)


def test_a_deletion_wins_over_an_assumed_state() -> None:
    """We patched it, somebody deleted it: the deletion's version may even be the older number."""
    store = listed(made("a", "u1", 5), version=5)
    store.assume(made("a", "u1", 9))
    store.deleted(made("a", "u1", 8))

    assert {} == versions(store)


def test_what_we_deleted_stays_away() -> None:
    """Events about its last moments do not bring it back; its end is told once."""
    store = listed(made("a", "u1", 5), version=5)
    heard: list[Change] = []
    store.add_handler(lambda change, _old, _new: heard.append(change))

    assert store.assume_deleted("u1")

    store.changed(made("a", "u1", 6))
    assert {} == versions(store)

    store.deleted(made("a", "u1", 7))
    assert [Change.DELETED] == heard


def test_a_list_that_was_under_way_does_not_bring_back_what_we_deleted() -> None:
    """But one that began later is believed, should we have been wrong."""
    store = listed(made("a", "u1", 5), version=5)
    under_way = store.begin_list()
    store.assume_deleted("u1")
    store.replace([made("a", "u1", 5)], 6, under_way)

    assert {} == versions(store)

    store.replace([made("a", "u1", 5)], 7, store.begin_list())

    assert {"a": ("u1", 5)} == versions(store)


def test_a_list_keeps_what_is_newer_than_itself() -> None:
    """A pod that we created while the list was being made is not deleted by it."""
    store = listed(version=5)
    number = store.begin_list()
    store.assume(made("a", "u1", 8))
    store.replace([], 7, number)

    assert {"a": ("u1", 8)} == versions(store)


def test_a_restored_cluster_is_believed() -> None:
    """Etcd went back in time: versions that we remember mean nothing any more."""
    store = listed(made("a", "u1", 50), made("b", "u2", 60), version=60)
    heard: list[tuple[Change, str]] = []
    store.add_handler(lambda change, old, new: heard.append((change, (new or old or {})["metadata"]["name"])))
    store.replace([made("a", "u1", 20)], 30, store.begin_list())

    assert {"a": ("u1", 20)} == versions(store)
    assert [(Change.DELETED, "b"), (Change.MODIFIED, "a")] == heard


def test_the_owner_index_follows_a_change_of_owner() -> None:
    """An orphaned or adopted object is found under its present owner only."""
    store = listed(made("a", "u1", 5, owner="j1"), version=5)
    store.changed(made("a", "u1", 6, owner="j2"))

    assert () == store.owned_by("j1")
    assert ["a"] == [o["metadata"]["name"] for o in store.owned_by("j2")]

    store.changed(made("a", "u1", 7))

    assert () == store.owned_by("j2")


HAPPENINGS = ["write", "write-answered", "delete", "delete-answered", "deliver", "relist", "late"]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, str, int]]:
    """What happened on the server, and in between when the watch delivers, lists happen, answers come."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["write", "write-answered", "delete", "delete-answered", "deliver", "relist", "late"]
                ),
                st.sampled_from(["a", "b", "c"]),
                st.integers(0, 4),
            ),
            max_size=60,
        )
    )


@given(histories())
def test_once_the_watch_has_caught_up_the_store_is_the_server(history: list[tuple[str, str, int]]) -> None:
    """For every interleaving; and before that, the store never shows less than our own answers."""
    server: dict[str, Json] = {}
    events: list[tuple[str, Json]] = []
    delivered = 0
    late: list[Json] = []
    store: Store[Json] = Store()
    store.replace([], 0, store.begin_list())
    mirror: dict[str, tuple[str, int]] = {}
    told: dict[str, str] = {}  # what somebody knows who only hears the handlers: uid -> name
    version, uids = 0, 0

    def hear(change: Change, old: Json | None, new: Json | None) -> None:
        obj = new or old
        assert obj is not None
        if change is Change.DELETED:
            told.pop(obj["metadata"]["uid"], None)
        else:
            told[obj["metadata"]["uid"]] = obj["metadata"]["name"]

    store.add_handler(hear)
    for what, name, number in history:
        if what.startswith("write"):
            version += 1
            if name not in server:
                uids += 1
            uid = server[name]["metadata"]["uid"] if name in server else f"u{uids}"
            new = made(name, uid, version, owner=f"j{number % 2}")
            events.append(("put", new))
            server[name] = new
            if what == "write-answered":
                store.assume(new)
                assert versions(store)[name] == (uid, version)
            else:
                late.append(new)
        elif what.startswith("delete") and name in server:
            version += 1
            old = server.pop(name)
            events.append(("delete", made(name, old["metadata"]["uid"], version)))
            if what == "delete-answered":
                store.assume_deleted(old["metadata"]["uid"])
                assert old["metadata"]["uid"] not in {uid for uid, _ in versions(store).values()}
        elif what == "deliver":
            for kind, obj in events[delivered : delivered + number]:
                (store.changed if kind == "put" else store.deleted)(obj)
            delivered = min(len(events), delivered + number)
        elif what == "relist":
            store.replace(list(server.values()), version, store.begin_list())
            delivered = len(events)
        elif what == "late" and late:
            store.assume(late.pop(number % len(late)))
    for kind, obj in events[delivered:]:
        (store.changed if kind == "put" else store.deleted)(obj)
    for obj in late:
        store.assume(obj)

    mirror = {n: (o["metadata"]["uid"], int(o["metadata"]["resourceVersion"])) for n, o in server.items()}
    assert mirror == versions(store)
    for owner in ("j0", "j1"):
        want = {n for n, o in server.items() if o["metadata"]["ownerReferences"][0]["uid"] == owner}
        assert want == {o["metadata"]["name"] for o in store.owned_by(owner)}
    assert all(store.by_uid(uid) is not None for uid, _ in mirror.values())
    assert set() == told.keys() - {uid for uid, _ in mirror.values()}
