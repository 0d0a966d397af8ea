"""Pods that are kept ready beside a job: when they are made, what they relieve, and what they never touch."""

from __future__ import annotations

from typing import Any

import pytest

from taskd.core import podplace
from taskd.core.acjob import names, pods, validation
from taskd.core.acjob.avoiding import Avoided, all_avoided
from taskd.core.acjob.environment import Addresses
from taskd.core.acjob.job import Slot
from taskd.core.acjob.pods import PodMaker
from taskd.core.acjob.seen import Ended
from taskd.core.acjob.status import stamp
from tests.core.acjob.play import NOW, Killed, Play, raw_job
from tests.core.acjob.samples import make_job

READY = "test-job-standby-0"


def kept_ready(workers: int = 2, count: int = 1, **changes: Any) -> Play:
    """A job that runs with its standbys."""
    annotations = {names.STANDBY_PODS: str(count)}
    play = Play(raw_job(workers=workers, annotations=annotations, **changes)).start()
    play.run_all()
    play.reconcile()
    return play


def standbys(play: Play) -> list[str]:
    return sorted(pod.name for pod in play.pods.values() if pod.standby)


def place_of(play: Play, name: str) -> Slot | None:
    return play.pods[name].slot


# ------------------------------------------------------------------------------------------ the wish


@pytest.mark.parametrize("value", ["-1", "one", "1.5", "", "101"])
def test_what_is_no_number_of_pods_is_refused(value: str) -> None:
    (problem,) = validation.validate(raw_job(annotations={names.STANDBY_PODS: value}))
    assert "InvalidStandbyPods" == problem.code
    assert "metadata.annotations[taskd.io/standby-pods]" == problem.path


def test_a_job_that_no_pod_could_stand_by_for_says_so_and_runs() -> None:
    job = make_job(annotations={names.STANDBY_PODS: "1"}, framework="mindspore")
    assert names.STANDBY_PODS_IGNORED in dict(pods.warnings(job, gang=False))


# ---------------------------------------------------------------------------------------- the pod


def make_standby(**changes: Any) -> dict[str, Any]:
    job = make_job(workers=2, annotations={names.STANDBY_PODS: "1"}, **changes)
    return PodMaker(job, Addresses("10.0.0.1", 2222, "10.0.0.2"), gang=True).standby(0, 3)


def test_a_standby_has_no_place_and_says_so_to_its_container() -> None:
    made = make_standby()
    labels, marks = made["metadata"]["labels"], made["metadata"]["annotations"]
    (container,) = (each for each in made["spec"]["containers"] if each["name"] == names.CONTAINER)
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert ("standby", "0", "3") == tuple(
        labels[key] for key in (names.REPLICA_TYPE, names.REPLICA_INDEX, names.POD_VERSION)
    )
    assert names.STANDBY == marks[names.POD_TYPE]
    assert names.RANK_INDEX not in marks
    assert names.JOB_ROLE not in labels
    assert "1" == env[podplace.SPARE]


def test_a_standby_is_known_to_the_others_by_name() -> None:
    """Whoever comes back asks all names that there can be, among them those of standbys with a place."""
    made = make_standby()
    (container,) = (each for each in made["spec"]["containers"] if each["name"] == names.CONTAINER)
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    peers = podplace.parse_peers(env[podplace.PEERS])
    job = make_job(workers=2, annotations={names.STANDBY_PODS: "1"})
    assert [f"{job.pod_name(slot)}.acjob-pods" for slot in job.slots()] == list(peers[:3])
    assert [f"{job.name}-standby-{number}.acjob-pods" for number in range(4)] == list(peers[3:])
    facts = podplace.read_pod({**env, "POD_IP": "10.0.0.9"}, f"{job.name}-standby-0")
    assert facts is not None
    assert facts.place.spare


# -------------------------------------------------------------------------------------- their making


def test_a_job_starts_before_its_standbys_are_made() -> None:
    play = Play(raw_job(workers=2, annotations={names.STANDBY_PODS: "2"}))
    play.reconcile()
    assert [] == standbys(play)
    play.run_all()
    play.reconcile()
    assert [READY, "test-job-standby-1"] == standbys(play)
    assert ("Running", "3/3") == (play.state, play.status["readyReplicas"])


def test_a_standby_that_finds_no_room_changes_nothing() -> None:
    play = Play(raw_job(workers=2, annotations={names.STANDBY_PODS: "1"})).start()
    assert ("Running", "3/3") == (play.state, play.status["readyReplicas"])
    assert "Pending" == play.pods[READY].phase


@pytest.mark.parametrize("how", ["deleted", "failed", "evicted"])
def test_how_a_standby_fares_is_nobodys_restart(how: str) -> None:
    """One that ended is left for a while, so that one which always fails is not made again and again."""
    play = kept_ready()
    if how == "deleted":
        play.lose(READY)
    elif how == "failed":
        play.change(READY, phase="Failed", ended=(Ended("ascend", 1, at=stamp(play.now)),))
        play.reconcile()
        assert "Failed" == play.pods[READY].phase
        assert play.wake_at is not None
        play.now = play.wake_at
    else:
        play.change(READY, phase="Failed", reason="Evicted", disrupted=True)
    play.reconcile()
    play.reconcile()
    assert [READY] == standbys(play)
    assert "Pending" == play.pods[READY].phase
    assert (0, "Running", "3/3") == (play.status["restarts"], play.state, play.status["readyReplicas"])


def test_fewer_are_wanted() -> None:
    play = kept_ready(count=2)
    play.raw["metadata"]["annotations"][names.STANDBY_PODS] = "1"
    play.reconcile()
    assert [READY] == standbys(play)


def test_they_go_with_the_job() -> None:
    play = kept_ready()
    for name, pod in list(play.pods.items()):
        if not pod.standby:
            play.change(name, phase="Succeeded", ended=(Ended("ascend", 0),))
    play.reconcile()
    play.reconcile()
    assert "Succeeded" == play.state
    assert [] == standbys(play)


# ------------------------------------------------------------------------------------------ relief


@pytest.mark.parametrize("lost", ["test-job-worker-1", "test-job-master-0"])
def test_a_standby_gets_the_place_of_a_lost_pod_and_another_is_made(lost: str) -> None:
    """It keeps its name; the restart is counted once, and nothing is created in the place."""
    play = kept_ready()
    place, uid = place_of(play, lost), play.pods[READY].uid
    play.lose(lost)
    play.reconcile()
    assert (place, uid, 1) == (place_of(play, READY), play.pods[READY].uid, play.pods[READY].version)
    assert lost not in play.pods
    assert ["test-job-standby-1"] == standbys(play)
    assert (1, {"pod-lost": 1}) == (play.status["restarts"], play.status["restartCauses"])
    assert ("Running", "3/3") == (play.state, play.status["readyReplicas"])


def test_standbys_take_places_in_the_order_of_ranks_and_numbers() -> None:
    play = kept_ready(workers=3, count=2)
    for name in ("test-job-worker-2", "test-job-worker-0", "test-job-worker-1"):
        play.lose(name)
    play.reconcile()
    assert Slot("Worker", 0) == place_of(play, READY)
    assert Slot("Worker", 1) == place_of(play, "test-job-standby-1")
    assert "test-job-worker-2" in play.pods
    assert 1 == play.status["restarts"]


def test_a_standby_gets_the_place_that_its_ranks_have_already() -> None:
    """Whoever asks knows what the manager did; what nobody has named follows the order of ranks and numbers.

    The pods go one after the other, and another is lost meanwhile.
    """
    play = kept_ready(workers=3, count=3)
    first, second, third = (f"test-job-standby-{number}" for number in range(3))
    play.stuck = frozenset({"test-job-worker-1"})
    request = {
        "id": "r1",
        "pods": ["test-job-worker-1", "test-job-worker-2"],
        "reason": "fault",
        "voluntary": True,
        "standbys": {"2": second, "3": first},
    }
    play.raw["status"]["requests"] = [request]
    play.reconcile()
    assert Slot("Worker", 2) == place_of(play, first)
    play.lose("test-job-worker-0")
    play.reconcile()
    play.now += 10
    play.reconcile()
    assert Slot("Worker", 0) == place_of(play, third), "the second one is spoken for"
    play.lose("test-job-worker-1")
    play.reconcile()
    assert Slot("Worker", 1) == place_of(play, second)


def test_an_assigned_standby_that_is_gone_is_not_waited_for() -> None:
    play = kept_ready(count=2)
    play.lose(READY)
    request = {
        "id": "r1",
        "pods": ["test-job-worker-1"],
        "reason": "fault",
        "voluntary": True,
        "standbys": {"2": READY, "x": "?"},
    }
    play.raw["status"]["requests"] = [request]
    play.reconcile()
    assert Slot("Worker", 1) == place_of(play, "test-job-standby-1")


def test_a_standby_with_a_place_that_is_lost_is_relieved_by_the_next() -> None:
    play = kept_ready()
    play.lose("test-job-worker-1")
    play.reconcile()
    play.run_all()
    play.lose(READY)
    play.now += 100
    play.reconcile()
    assert Slot("Worker", 1) == place_of(play, "test-job-standby-1")
    assert [READY] == standbys(play), "the number is free again"
    assert 2 == play.status["restarts"]


def test_where_nobody_is_left_all_pods_are_made_anew() -> None:
    """A standby has no state, and nobody is there who would call it."""
    play = kept_ready(workers=1)
    for name in ("test-job-master-0", "test-job-worker-0"):
        play.lose(name)
    play.reconcile()
    assert {"test-job-master-0", "test-job-worker-0"} <= set(play.pods)
    assert play.pods[READY].standby


def test_a_restart_of_the_whole_job_replaces_the_standbys_too() -> None:
    """They belong to a run that is over. What is made is made when all run again."""
    play = kept_ready(labels={"fault-retry-times": "3"})
    before = play.pods[READY].uid
    play.fail("test-job-worker-0")
    play.reconcile()
    play.reconcile()
    play.run_all()
    play.reconcile()
    assert [READY] == standbys(play)
    assert before != play.pods[READY].uid
    assert Slot("Worker", 0) == place_of(play, "test-job-worker-0")


def test_a_switch_uses_the_pod_that_is_ready() -> None:
    """No other is created; it has the place when the old pod is gone, and that is no restart."""
    play = kept_ready()
    source, uid = "test-job-worker-0", play.pods[READY].uid
    marks = {names.HOT_SWITCH: "true", names.ASK_OPERATOR: "create"}
    play.change(source, annotations={**play.pods[source].annotations, **marks})
    play.reconcile()
    assert play.pods[READY].backup
    assert READY == play.pods[source].annotations[names.BACKUP_NEW]
    play.change(source, annotations={**play.pods[source].annotations, names.ASK_VOLCANO: "delete"})
    play.reconcile()
    assert (Slot("Worker", 0), uid) == (place_of(play, READY), play.pods[READY].uid)
    assert not play.pods[READY].backup
    assert source not in play.pods
    assert ["test-job-standby-1"] == standbys(play)
    assert (0, "Running") == (play.status["restarts"], play.state)


# ------------------------------------------------------------------------------- a pod out of reach


def ask(play: Play, pod: str, node: str) -> None:
    request = {"id": "r1", "pods": [pod], "reason": "cut", "voluntary": True, "force": True, "avoid": [node]}
    play.raw["status"]["requests"] = [request]


def test_a_pod_out_of_reach_goes_by_force_and_comes_back_elsewhere() -> None:
    """Its kubelet cannot confirm, so it is not waited for; and the scheduler does not know of it yet."""
    play = Play(raw_job(workers=2)).start()
    victim = "test-job-worker-1"
    play.stuck = frozenset({victim})
    play.change(victim, node="node-7", deleting=True)
    ask(play, victim, "node-7")
    play.reconcile()
    assert ("node-7", 1) == (play.pods[victim].annotations[names.AVOIDS], play.pods[victim].version)
    assert 1 == play.status["restarts"]


@pytest.mark.parametrize("scope", ["pod", "job"])
@pytest.mark.parametrize("together", [False, True], ids=["later", "at once"])
def test_a_pod_out_of_reach_gets_no_time_where_a_gentle_request_came_before(
    scope: str, together: bool
) -> None:
    """Nobody there can end it in order; its peers keep the time that they were given."""
    play = Play(raw_job(workers=2)).start()
    victim, before = "test-job-worker-1", play.pods["test-job-worker-1"].uid
    play.stuck = frozenset(play.pods)
    play.change(victim, node="node-7")
    which: dict[str, Any] = {"scope": "job"} if scope == "job" else {"pods": [victim], "uids": [before]}
    gentle = {"id": "r0", "reason": "fault", "voluntary": True, "force": False, **which}
    if not together:
        play.raw["status"]["requests"] = [gentle]
        play.reconcile()
        assert play.pods[victim].deleting, "it has its time"
    ask(play, victim, "node-7")
    play.raw["status"]["requests"] = [gentle, *play.raw["status"]["requests"]]
    play.reconcile()
    assert before != play.pods[victim].uid
    assert 1 == play.status["restarts"], "it is one loss"
    assert "node-7" == play.pods[victim].annotations[names.AVOIDS]
    peers = [pod for name, pod in play.pods.items() if name != victim]
    assert [scope == "job"] * 2 == [pod.deleting for pod in peers], "and nobody took the time from them"


def test_a_pod_that_is_going_keeps_its_time_where_nobody_says_force() -> None:
    play = Play(raw_job(workers=2)).start()
    victim = "test-job-worker-1"
    play.change(victim, node="node-7", deleting=True)
    request = {"id": "r1", "pods": [victim], "reason": "fault", "voluntary": True, "force": False}
    play.raw["status"]["requests"] = [request]
    play.reconcile()
    assert ([], 0) == (play.deleted, play.pods[victim].version)


def test_a_pod_that_finds_no_other_node_is_let_back_after_a_while() -> None:
    play = Play(raw_job(workers=2)).start()
    victim = "test-job-worker-1"
    play.change(victim, node="node-7")
    ask(play, victim, "node-7")
    play.reconcile()
    assert play.wake_at is not None
    assert play.wake_at > NOW
    play.now = play.wake_at
    play.reconcile()
    assert names.AVOIDS not in play.pods[victim].annotations
    assert 1 == play.status["restarts"]


def test_a_standby_on_the_same_node_is_out_of_reach_too() -> None:
    play = kept_ready()
    for name in (READY, "test-job-worker-1"):
        play.change(name, node="node-7")
    ask(play, "test-job-worker-1", "node-7")
    play.reconcile()
    assert Slot("Worker", 1) == place_of(play, "test-job-worker-1")
    assert READY in play.deleted


# ------------------------------------------------------------------------------ isolated nodes

NPU = {"limits": {"huawei.com/Ascend910": 8}}


def with_devices(raw: dict[str, Any]) -> dict[str, Any]:
    for replicas in raw["spec"]["replicaSpecs"].values():
        replicas["template"]["spec"]["containers"][0]["resources"] = NPU
    return raw


def isolate(play: Play, node: str, scope: str = "node") -> None:
    play.raw["status"]["isolatedNodes"] = [{"name": node, "scope": scope}]


def test_a_standby_on_an_isolated_node_gets_no_place_where_another_is_ready() -> None:
    play = kept_ready(count=2)
    play.change(READY, node="node-7")
    isolate(play, "node-7")
    play.lose("test-job-worker-1")
    play.reconcile()
    assert Slot("Worker", 1) == place_of(play, "test-job-standby-1")
    assert READY in play.deleted


def test_a_standby_on_an_isolated_node_gets_no_place_where_a_new_pod_can_be_made() -> None:
    """The lost pod was on the same node, as it is when the node itself breaks."""
    play = kept_ready()
    for name in (READY, "test-job-worker-1"):
        play.change(name, node="node-7")
    isolate(play, "node-7")
    play.lose("test-job-worker-1")
    play.reconcile()
    assert "node-7" == play.pods["test-job-worker-1"].annotations[names.AVOIDS]
    assert READY in play.deleted


def test_a_standby_is_moved_off_a_node_that_is_isolated() -> None:
    """Before it is needed, with time to end, and at nobody's cost."""
    play = kept_ready()
    before = play.pods[READY].uid
    play.change(READY, node="node-7")
    isolate(play, "node-7")
    play.reconcile()
    (name,) = standbys(play)
    assert ("node-7", "") == (play.pods[name].annotations[names.AVOIDS], play.pods[name].node)
    assert before not in {pod.uid for pod in play.pods.values()}
    assert (0, "Running") == (play.status["restarts"], play.state)


def test_a_standby_beside_a_broken_device_stays_and_is_the_last_choice() -> None:
    """Made anew it might land there again, and the device need not be its own."""
    play = Play(with_devices(raw_job(workers=2, annotations={names.STANDBY_PODS: "2"}))).start()
    play.run_all()
    play.reconcile()
    play.change(READY, node="node-7")
    isolate(play, "node-7", "device")
    play.reconcile()
    assert [READY, "test-job-standby-1"] == standbys(play)
    assert [] == play.deleted
    play.lose("test-job-worker-1")
    play.reconcile()
    assert Slot("Worker", 1) == place_of(play, "test-job-standby-1")


def test_a_switch_leaves_a_standby_on_an_isolated_node_alone() -> None:
    play = kept_ready(count=2)
    play.change(READY, node="node-7")
    isolate(play, "node-7")
    source = "test-job-worker-0"
    marks = {names.HOT_SWITCH: "true", names.ASK_OPERATOR: "create"}
    play.change(source, annotations={**play.pods[source].annotations, **marks})
    play.reconcile()
    assert "test-job-standby-1" == play.pods[source].annotations[names.BACKUP_NEW]


def test_a_template_keeps_its_own_wishes_about_nodes() -> None:
    """Of several terms one is enough for a scheduler, so the node is named in each."""
    terms: list[dict[str, Any]] = [
        {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        {"matchFields": []},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    job = make_job(
        workers=1,
        worker={"spec": {"containers": [{"name": "ascend"}], "affinity": {"nodeAffinity": required}}},
    )
    made = PodMaker(job, Addresses(), gang=False, avoided=(Avoided("n1"),)).pod(Slot("Worker", 0), 1)
    found = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    other = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
    assert [other, other] == [term["matchFields"][-1] for term in found["nodeSelectorTerms"]]
    assert terms[0]["matchExpressions"] == found["nodeSelectorTerms"][0]["matchExpressions"]


def test_a_pod_that_waits_is_let_back_once_the_node_is_not_isolated_any_more() -> None:
    """A scheduler never takes an exclusion back, so the pod is made anew; that is no restart."""
    play = Play(raw_job(workers=2)).start()
    victim = "test-job-worker-1"
    play.change(victim, node="node-7")
    play.raw["status"]["requests"] = [{"id": "r1", "pods": [victim], "reason": "fault", "voluntary": True}]
    play.raw["status"]["isolatedNodes"] = [{"name": "node-7", "scope": "node"}]
    play.reconcile()
    uid = play.pods[victim].uid
    play.now += 3600
    play.reconcile()
    assert ("node-7", uid) == (play.pods[victim].annotations[names.AVOIDS], play.pods[victim].uid)
    play.raw["status"]["isolatedNodes"] = []
    play.reconcile()
    assert names.AVOIDS not in play.pods[victim].annotations
    assert 1 == play.status["restarts"]


def test_a_standby_that_waits_is_let_back_too() -> None:
    play = kept_ready()
    play.raw["status"]["isolatedNodes"] = [{"name": "node-7", "scope": "node"}]
    play.lose(READY)
    play.reconcile()
    assert {"node-7"} == {play.pods[name].annotations.get(names.AVOIDS) for name in standbys(play)}
    play.raw["status"]["isolatedNodes"] = []
    play.reconcile()
    assert {None} == {play.pods[name].annotations.get(names.AVOIDS) for name in standbys(play)}
    assert 0 == play.status["restarts"]


def test_what_nobody_reaches_is_closed_even_where_only_a_device_is_isolated() -> None:
    raw = {
        "status": {"isolatedNodes": [{"name": "n1", "scope": "device"}, {"name": "n2", "scope": "device"}]}
    }
    assert (Avoided("n1"), Avoided("n2", True)) == all_avoided(raw, {"n1"})


# -------------------------------------------------------------------------------------------- kills


@pytest.mark.parametrize("lost", ["test-job-worker-1", "test-job-master-0"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_controller_may_be_killed_at_any_write(lost: str, cut: bool) -> None:
    """Whoever comes next ends where the undisturbed one does."""

    def story(kill_at: int | None) -> tuple[Play, bool]:
        play = kept_ready()
        if cut:
            play.change(lost, node="node-7")
            ask(play, lost, "node-7")
        else:
            play.lose(lost)
        play.kill_at = play.writes + kill_at if kill_at else None
        try:
            play.reconcile()
        except Killed:
            play.crash()
        else:
            kill_at = None
        for _ in range(3):
            play.reconcile()
            play.run_all()
        return play, kill_at is not None

    def outcome(play: Play) -> object:
        there = {name: (pod.slot, pod.version, pod.standby) for name, pod in play.pods.items()}
        return there, play.status["restarts"], play.status["restartCauses"], play.state

    undisturbed, _ = story(None)
    for write in range(1, 40):
        play, killed = story(write)
        assert outcome(undisturbed) == outcome(play), write
        if not killed:
            break
    else:
        pytest.fail("the story does not end")
    assert 1 == undisturbed.status["restarts"]
