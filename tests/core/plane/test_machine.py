"""Rules of the machine that no transcript shows, because they are about time or about nobody answering."""

from dataclasses import replace

import pytest

from taskd.core.faults.view import FaultKind, Health, RankFault
from taskd.core.plane.machine import next_look
from taskd.core.plane.requests import requests, told_apart
from taskd.core.plane.resuming import kept, repeat, resumed
from taskd.core.plane.state import (
    Ask,
    FaultsReported,
    Phase,
    PodSeen,
    PodsSeen,
    RecordIncident,
    SaveState,
    SendSignal,
    StatusReported,
    StopReported,
    StrategiesReported,
    Subscribed,
    Unsubscribed,
    WriteReset,
)
from tests.core.plane.scenes import START, Play, broken, pods, views


def asking() -> Play:
    play = Play.of("recover")
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))
    return play


def test_a_stop_is_answered_in_the_same_step() -> None:
    """From ReportStopComplete to globalFault nothing is waited for."""
    play = Play.of("recover")
    play.feed(FaultsReported((("9", "1"),)))
    done = play.feed(StopReported(0))

    assert "globalFault" == play.signal.kind
    assert isinstance(done[0], SaveState), "and it is kept before it is sent"


def test_a_missing_pod_has_until_the_jobs_own_limit() -> None:
    """270 s after the pod was asked for, the whole job is started again; then 135 s, then its end."""
    play = asking()
    play.feed(StrategiesReported(("recover",)), after_s=10)

    assert play.at(Phase.RECOVERING)
    assert START + 270 == next_look(play.state)
    play.wait()
    assert play.at(Phase.RESTARTING)
    assert ("restart-job", ()) == play.asked[-1]
    assert START + 270 + 135 == next_look(play.state)
    play.wait()
    assert play.at(Phase.INIT)
    assert "killMaster" == play.signals[-1]
    assert "failed" in play.outcome


def test_all_faulty_pods_have_to_come_back() -> None:
    """One of two replaced pods is not enough for the agents to start."""
    play = Play.of("recover", size=3)
    play.feed(FaultsReported((("9", "1"), ("17", "1"))))
    play.feed(StopReported(0))
    play.feed(StrategiesReported(("recover",)))
    play.feed(PodsSeen(pods(3, p1="new")))

    assert "clear" not in play.resets
    play.feed(PodsSeen(pods(3, p1="new", p2="new")))
    assert "clear" == play.resets[-1]


def test_the_trainer_gets_its_full_time_once_the_pods_are_there() -> None:
    """The limit for the pods does not run on when they came."""
    play = asking()
    play.feed(StrategiesReported(("recover",)))
    play.feed(PodsSeen(pods(p1="new")), after_s=260)

    assert START + 260 + 900 == next_look(play.state)


def test_a_report_before_its_order_was_handed_out_is_stale() -> None:
    """Nobody can answer what nobody has got."""
    play = Play.of("recover")
    play.feed(Unsubscribed())
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))

    assert 401 == int(play.answer.code)
    assert "was not handed out yet" in play.answer.info
    play.feed(Subscribed())
    play.feed(StopReported(0))
    assert 0 == int(play.answer.code)


def test_pods_that_were_replaced_before_anybody_asked_are_not_waited_for() -> None:
    """No manager comes, and the faulty pod is another one already when somebody would wait for it."""
    play = Play.of("recover,exit")
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(Unsubscribed())
    play.feed(PodsSeen(pods(p1="new")))
    play.wait()

    assert play.at(Phase.INIT), play.state.phase
    assert "started again" in play.outcome


def test_a_recovery_that_never_ends_ends() -> None:
    """The eighth round is the last: a job whose replacements die again and again is started anew."""
    play = Play.of("recover")
    play.feed(FaultsReported((("9", "1"),)))
    for number in range(20):
        play.feed(StopReported(0))
        play.feed(StrategiesReported(("recover",)))
        play.feed(PodsSeen(pods(p1=f"new-{number}")))
        play.feed(FaultsReported((("9", "1"),)))
        if play.state.phase is Phase.RESTARTING:
            break

    assert play.at(Phase.RESTARTING)
    assert 8 == play.signals.count("stopTrain")


def test_in_place_is_shown_to_agents_and_then_taken_away() -> None:
    """Agents that read the file see the rank for a few seconds; nobody waits for that."""
    play = Play.of("recover-in-place")
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))
    play.feed(StrategiesReported(("recover",)))

    assert START + 5 == next_look(play.state)
    play.wait()
    assert (Phase.RECOVERING, "clear") == (play.state.phase, play.resets[-1])


def test_several_pods_with_dead_processes_move_where_they_may() -> None:
    """Only processes failed, on more than one pod: they move, or go on in place where they may not."""
    for strategies, want in (
        ("recover,recover-in-place", ("replace", (1, 2))),
        ("recover-in-place", ("keep", (1, 2))),
    ):
        play = Play.of(strategies, size=3)
        play.feed(FaultsReported((("9", "1"), ("17", "1"))))
        play.feed(StopReported(0))

        assert [want] == play.asked


def test_a_lasting_device_fault_is_not_waited_for() -> None:
    """Only faults that pass by themselves are given a moment."""
    play = Play.of("recover-in-place")
    play.devices(broken(9, "SeparateNPU"))
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))

    assert play.at(Phase.ASKING)
    assert [("replace", (1,))] == play.asked


def test_a_device_fault_is_answered_once() -> None:
    """A fault that stays after the recovery does not begin it again; one that goes and comes back does."""
    play = Play.of("retry")
    uce = broken(9, kind=FaultKind.UCE)
    play.devices(uce)
    play.feed(StopReported(0))
    play.feed(StrategiesReported(("retry",)))
    play.feed(StatusReported(0, "retry"))
    play.devices(uce)

    assert play.at(Phase.INIT)
    play.devices()
    play.devices(uce)
    assert play.at(Phase.STOPPING)


@pytest.mark.parametrize("strategies", ["recover", "retry,recover-in-place,recover"])
def test_peers_that_felt_a_lost_pod_keep_their_processes(strategies: str) -> None:
    """A broken connection is what the loss looks like to them, whoever is heard of first."""
    play = Play.of(strategies, size=3)
    play.feed(PodsSeen({rank: pod for rank, pod in pods(3).items() if rank != 1}))
    play.feed(FaultsReported((("0", "2"), ("17", "2"))))
    play.feed(StopReported(0))

    assert [("replace", (1,))] == play.asked
    assert list(range(8, 16)) == list(play.signal.faults)


def test_what_a_job_did_by_itself_ends_the_episode() -> None:
    """A plane that was away asks for nothing that is done; a device that is still broken stays to be left."""
    play = Play.of("recover")
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StatusReported(0, "recover-in-place", alone="rank 9 was replaced"))
    assert play.at(Phase.INIT)
    first, _ = [each for each in play.last if isinstance(each, RecordIncident)]
    assert (0, "rank 9 was replaced") == (play.answer.code, first.what)

    play.feed(StatusReported(0, "recover", alone="again, and nothing was under way"))
    (told,) = [each for each in play.last if isinstance(each, RecordIncident)]
    assert (0, "recovered") == (play.answer.code, told.outcome)

    play.devices(broken(9, "SeparateNPU"))
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StatusReported(0, "recover", alone="rank 9 was replaced"))
    assert play.at(Phase.STOPPING)


@pytest.mark.parametrize("kind", [FaultKind.UCE, FaultKind.NETWORK])
def test_a_step_that_the_job_repeated_by_itself_ends_the_episode(kind: FaultKind) -> None:
    """Device plugins report such a fault for a while; it is answered all the same, and once."""
    play = Play.of("retry,recover")
    play.devices(broken(9, kind=kind))
    play.feed(StopReported(0))
    assert play.at(Phase.ASKING)
    play.state = resumed(kept(play.state), play.now)
    play.devices(broken(9, kind=kind))
    play.feed(StatusReported(0, "retry", alone="the step was repeated"))
    assert play.at(Phase.INIT)
    play.devices(broken(9, kind=kind))
    assert play.at(Phase.INIT)


def test_a_device_that_comes_back_after_the_job_went_on_by_itself() -> None:
    """Its plane died while it was waited for: the job is asked nothing, since it would not answer."""
    play = Play.of("recover-in-place")
    play.devices(broken(9))
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))
    assert play.at(Phase.HEALING)
    play.state = resumed(kept(play.state), play.now)
    play.feed(PodsSeen(pods()))
    play.devices(broken(9))
    play.feed(StatusReported(0, "recover-in-place", alone="rank 9 was replaced"))
    assert play.at(Phase.HEALING)
    before = play.signals
    play.devices()

    assert play.at(Phase.INIT)
    assert (before, []) == (play.signals, play.asked)


@pytest.mark.parametrize("under_way", [False, True], ids=["", "the plane died in the middle of it"])
def test_a_plane_that_was_away_is_told_whose_ranks_are_elsewhere(under_way: bool) -> None:
    """The operator learns it too: the old pod goes by force, the standby has its place, and none was lost."""
    play = Play.of("recover", size=3)
    if under_way:
        play.feed(FaultsReported((("9", "1"),)))
        play.feed(StopReported(0))
    play.state = resumed(kept(play.state), play.now)
    play.feed(PodsSeen(pods(3)))
    told = StatusReported(0, "recover", alone="ranks 8 to 15 went to a standby", placed={1: "job-standby-0"})
    play.feed(told)
    (ask,) = (each for each in play.last if isinstance(each, Ask))
    (request,) = requests(ask, views(3))
    assert (["job-1"], True, {"1": "job-standby-0"}) == tuple(
        request[key] for key in ("pods", "force", "standbys")
    )
    assert play.at(Phase.INIT)
    taken = {**pods(3), 1: PodSeen("job-standby-0", "standby")}
    play.feed(PodsSeen({rank: pod for rank, pod in pods(3).items() if rank != 1}))
    play.feed(PodsSeen(taken))
    assert play.at(Phase.INIT)
    play.feed(told)
    assert [] == [each for each in play.last if isinstance(each, Ask)], "the place is its own by now"
    play.feed(PodsSeen({rank: pod for rank, pod in taken.items() if rank != 1}))
    assert play.at(Phase.STOPPING), "the loss of the one that took over is a loss"


def test_standbys_that_were_given_each_others_places_are_left_at_work() -> None:
    """Both train, whatever their labels say."""
    play = Play.of("recover", size=3)
    play.feed(StatusReported(0, "recover", alone="two pods were lost", placed={1: "job-2", 2: "job-1"}))

    assert ([], {}) == (play.asked, play.state.left)


def test_a_new_pod_on_a_broken_device_is_a_new_fault() -> None:
    """The fault was answered for the old pod only."""
    play = Play.of("recover")
    play.devices(broken(9))
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))
    play.feed(PodsSeen(pods(p1="new")))
    play.feed(StrategiesReported(("recover",)))
    play.devices(broken(9))

    assert play.at(Phase.STOPPING)
    assert "another fault" in play.state.episode.reason if play.state.episode else False


@pytest.mark.parametrize("health", [Health.HEALTHY, Health.UNHEALTHY])
def test_slow_devices_count_only_while_the_job_is_sub_healthy(health: Health) -> None:
    """An entry of a slow device in a view that is not sub-healthy begins nothing."""
    play = Play.of("recover", subHealthyStrategy="hotSwitch")
    play.devices(broken(9, "SubHealthFault"), health=health)

    assert play.at(Phase.INIT)


def test_a_switch_that_fails_is_tried_again_more_and_more_rarely() -> None:
    """After 60 s, 120 s, 240 s; and at once when the report changes."""
    play = Play.of("", subHealthyStrategy="hotSwitch")
    play.devices(broken(9, "SubHealthFault"), health=Health.SUB_HEALTHY)
    waits = []
    for _ in range(3):
        play.wait()
        assert play.at(Phase.INIT)
        waits.append(next_look(play.state) - play.now)
        play.wait()
        assert play.at(Phase.STANDBY)
    play.wait()
    play.devices(broken(10, "SubHealthFault"), health=Health.SUB_HEALTHY)

    assert [60, 120, 240] == waits
    assert play.at(Phase.STANDBY)


def test_a_standby_that_finds_no_place_is_told_in_the_scheduler_s_words() -> None:
    """The job trains on in the old pod, and whoever reads the event knows what is missing."""
    play = Play.of("", subHealthyStrategy="hotSwitch")
    play.devices(broken(9, "SubHealthFault"), health=Health.SUB_HEALTHY)
    waiting = PodSeen("job-1", "uid-1", standby="uid-s", standby_waits="0/3 nodes are available")
    play.feed(PodsSeen({**pods(2), 1: waiting}))
    play.wait()

    assert play.at(Phase.INIT)
    assert "not running within 60 s: 0/3 nodes are available" in play.outcome


@pytest.mark.parametrize(
    ("events", "want"),
    [
        ([FaultsReported((("9", "1"),))], {"flushing"}),
        ([FaultsReported((("9", "1"),)), StopReported(0)], {"faulty", "replace"}),
        (
            [FaultsReported((("9", "1"),)), StopReported(0), StrategiesReported(("recover",))],
            {"faulty", "replace"},
        ),
        ([FaultsReported((("9", "1"),)), StopReported(404)], {"clear", "restart-job", "pause"}),
    ],
)
def test_a_new_plane_asks_again_for_what_may_not_have_been_done(events: list[object], want: set[str]) -> None:
    """The state was kept before its effects were carried out, so they are carried out once more."""
    play = Play.of("recover")
    for event in events:
        play.feed(event)  # type: ignore[arg-type]
    again = resumed(kept(play.state), play.now)
    found = set()
    for effect in repeat(again, play.now):
        assert play.state.uuid == effect.uuid
        if isinstance(effect, WriteReset):
            found.add(effect.content.kind.value)
        elif isinstance(effect, Ask):
            found.add(effect.wish.value)
        elif not isinstance(effect, SendSignal):
            found.add(getattr(effect, "value", ""))

    assert want == found


def test_a_pod_that_failed_is_lost_and_one_that_was_asked_to_go_is_not() -> None:
    """A failed pod begins a recovery by itself; its replacement, which was asked for, begins none."""
    play = Play.of("recover", size=3)
    failed = {**pods(3), 1: PodSeen("job-1", "uid-1", running=False, failed=True)}
    play.feed(PodsSeen(failed))

    assert play.at(Phase.STOPPING)
    assert list(range(8, 16)) == list(play.signal.faults)
    play.feed(StopReported(0))
    play.feed(PodsSeen({rank: pod for rank, pod in pods(3).items() if rank != 1}))
    play.feed(PodsSeen(pods(3, p1="new")))
    play.feed(StrategiesReported(("recover",)))
    play.feed(StatusReported(0, "recover"))
    assert play.at(Phase.INIT)
    assert 1 == play.signals.count("stopTrain")


@pytest.mark.parametrize(
    "event",
    [
        PodsSeen(pods(3, p0="x", p1="y", p2="z")),
        PodsSeen({}),
        PodsSeen(pods(2), ending=True),
    ],
    ids=["all replaced", "all gone", "the job ends"],
)
def test_pods_that_go_with_their_job_are_not_lost(event: PodsSeen) -> None:
    """A job that is started again, deleted, suspended or finished by somebody else is no fault."""
    play = Play.of("recover", size=3)
    play.feed(event)

    assert play.at(Phase.INIT)


def test_a_pod_that_is_gone_does_not_go_on_in_place() -> None:
    """Its devices are silent because it is gone, not because they are well."""
    play = Play.of("recover-in-place", size=3)
    play.devices(broken(9))
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))
    assert play.at(Phase.HEALING)
    play.feed(PodsSeen({rank: pod for rank, pod in pods(3).items() if rank != 1}))
    play.devices()

    assert [("replace", (1,))] == play.asked


@pytest.mark.parametrize("strategies", ["recover", "recover-in-place,recover", "recover-in-place"])
def test_a_pod_that_nobody_reaches_is_replaced_by_force_and_elsewhere(strategies: str) -> None:
    """The cluster still shows it as running, and nothing is known to be wrong with its devices."""
    play = Play.of(strategies, size=3)
    play.feed(FaultsReported((("9", "1"),), cut=(1,)))
    play.feed(StopReported(0))

    (ask,) = (effect for effect in play.effects if isinstance(effect, Ask) and effect.wish == "replace")
    assert ((1,), (1,), ("node-1",)) == (ask.pods, ask.cut, ask.avoid)
    (request,) = requests(ask, views(3))
    assert (["job-1"], True, ["node-1"]) == tuple(request[key] for key in ("pods", "force", "avoid"))
    play.feed(StrategiesReported(("recover",)))
    assert (Phase.RECOVERING, (1,)) == (play.state.phase, play.signal.nodes)


@pytest.mark.parametrize("before", ["asking", "recovering", "in place", "restarting"])
def test_a_pod_out_of_reach_gets_no_time_although_it_was_dealt_with_gently_before(before: str) -> None:
    """That somebody there would end it in order was believed before anybody knew that nobody is reached."""
    play = Play.of("recover-in-place,recover" if before == "in place" else "recover", size=3)
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StopReported(0))
    if before in {"recovering", "restarting"}:
        play.feed(StrategiesReported(("recover",)))
    if before == "restarting":
        play.wait()
    gentle = [each for each in play.effects if isinstance(each, Ask) and each.wish != "keep"]
    assert all(not request["force"] for ask in gentle for request in requests(ask, views(3)))
    play.feed(FaultsReported((("9", "1"),), cut=(1,)))

    (ask,) = (each for each in play.last if isinstance(each, Ask) and each.wish != "keep")
    hard = [each for each in requests(ask, views(3)) if each["force"]]
    assert [(["job-1"], ["uid-1"], ["node-1"])] == [
        (each["pods"], each["uids"], each["avoid"]) for each in hard
    ]
    earlier = {request["id"] for ask in gentle for request in requests(ask, views(3))}
    assert hard[0]["id"] not in earlier, "the operator takes up each id once"


def test_pods_out_of_reach_do_not_cost_the_others_their_time() -> None:
    play = Play.of("recover", size=4)
    play.feed(FaultsReported((("9", "1"), ("17", "1")), cut=(1,)))
    play.feed(StopReported(0))

    (ask,) = (effect for effect in play.effects if isinstance(effect, Ask))
    found = requests(ask, views(4))
    assert [(["job-2"], False), (["job-1"], True)] == [(each["pods"], each["force"]) for each in found]
    assert [["node-1"], ["node-1"]] == [each["avoid"] for each in found]


def test_another_pod_of_the_same_round_is_asked_for_under_another_name() -> None:
    """The operator takes each name up once, and what waits for it must not be overwritten."""
    play = Play.of("dump", size=4)
    play.feed(FaultsReported((("9", "1"),)))
    play.feed(StatusReported(0, "dump"))
    play.devices(broken(17))
    first, second = (each for each in play.effects if isinstance(each, Ask))
    assert first.uuid == second.uuid
    known = told_apart(requests(first, views(4)), {})
    more = told_apart(requests(second, views(4)), known)
    assert [["uid-1"], ["uid-2"]] == [each["uids"] for each in (known | more).values()]
    assert known == told_apart(requests(first, views(4)), known | more), "asking twice is asking once"


def test_a_restart_of_the_whole_job_avoids_nodes_that_were_out_of_reach() -> None:
    """Those that nobody reaches get no time to end, the others do; the new pods go elsewhere."""
    play = Play.of("recover", size=3)
    play.feed(FaultsReported((("9", "1"),), cut=(1,)))
    play.feed(StopReported(0))
    play.feed(StrategiesReported(("recover",)))
    play.wait()

    assert play.at(Phase.RESTARTING)
    (ask,) = (each for each in play.last if isinstance(each, Ask))
    whole, cut = requests(ask, views(3))
    assert ("job", False, ["node-1"]) == (whole["scope"], whole["force"], whole["avoid"])
    assert (["job-1"], True, ["node-1"]) == (cut["pods"], cut["force"], cut["avoid"])
    again = [each for each in repeat(play.state, play.now) if isinstance(each, Ask)]
    assert [ask] == [replace(each, reason=ask.reason) for each in again]


def test_a_node_stays_avoided_when_the_pod_that_was_there_is_another_one() -> None:
    """The new pod is reached, so it has its time like the others; the old one's node is no better for it."""
    play = Play.of("recover", size=3)
    play.feed(FaultsReported((("9", "1"),), cut=(1,)))
    play.feed(StopReported(0))
    play.feed(StrategiesReported(("recover",)))
    play.feed(PodsSeen({**pods(3), 1: PodSeen("job-1", "new", node="node-9")}))
    play.wait()

    assert play.at(Phase.RESTARTING)
    (ask,) = (each for each in play.last if isinstance(each, Ask))
    (whole,) = requests(ask, views(3))
    assert ("job", ["node-1"]) == (whole["scope"], whole["avoid"])


def test_a_standby_that_has_taken_over_needs_no_new_pod() -> None:
    """The episode ends when the trainer says so; the old pod may go, and the new one come, afterwards."""
    play = Play.of("recover", size=3)
    play.feed(FaultsReported((("9", "1"),), cut=(1,)))
    play.feed(StopReported(0))
    play.feed(StrategiesReported(("recover",)))
    play.feed(StatusReported(0, "recover"))
    assert play.at(Phase.INIT)
    play.state = resumed(kept(play.state), play.now)
    play.feed(PodsSeen(pods(3)))
    play.feed(PodsSeen(pods(3, p1="standby")))
    assert play.at(Phase.INIT)
    assert {} == play.state.left
    play.feed(PodsSeen({rank: pod for rank, pod in pods(3).items() if rank != 1}))
    assert play.at(Phase.STOPPING), "the loss of the one that took over is a loss"


def switched_until_the_old_pod_goes() -> Play:
    """A switch whose ranks have moved, by a manager that keeps the old pod until then."""
    play = Play.of("recover", subHealthyStrategy="hotSwitch")
    play.feed(Subscribed(keeps_old=True))
    play.devices(RankFault(9, FaultKind.NORMAL, "SubHealthFault", "81B38009"), health=Health.SUB_HEALTHY)
    old = PodSeen("job-1", "uid-1", standby="uid-2", standby_running=True, standby_name="job-1-hot")
    play.feed(PodsSeen({**pods(), 1: old}))
    play.feed(StrategiesReported(("migration", "exit")))
    play.feed(StatusReported(0, "migration"))
    assert play.at(Phase.PARTING)
    return play


def test_a_plane_that_dies_while_the_old_pod_of_a_switch_goes() -> None:
    """The next one sees that it has gone, and that is all that was left to do."""
    play = switched_until_the_old_pod_goes()
    before = play.signals
    play.state = resumed(kept(play.state), play.now)
    play.feed(PodsSeen({**pods(), 1: PodSeen("job-1-hot", "uid-2")}))

    assert play.at(Phase.INIT)
    assert before == play.signals


def test_a_fault_while_the_old_pod_of_a_switch_goes_leaves_the_new_one() -> None:
    """The ranks are there by now."""
    play = switched_until_the_old_pod_goes()
    play.feed(FaultsReported((("0", "1"),)))

    assert play.at(Phase.STOPPING)
    assert "drop-standby" not in [wish for wish, _ in play.asked]
