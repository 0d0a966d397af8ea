"""The recovery machine: its decisions, one scene each."""

from dataclasses import replace

from taskd.core import job as machine
from taskd.core import jobread
from taskd.core.exits import Exit, ExitCode
from taskd.core.jobstate import (
    Ending,
    EndJob,
    NodeAnnounced,
    Refuse,
    SendOrder,
    StopRequested,
    Ticked,
)
from taskd.core.messages import (
    Announce,
    Beat,
    Finish,
    NodePhase,
    OrderDone,
    Progress,
    Start,
    Stop,
    WorkerExited,
    WorkersStarted,
    WorkersStopped,
    WorkerState,
    WorkerView,
)
from taskd.core.status import JobPhase
from tests.core.scenes import DONE, KILLED, RAISED, scene

# --- starting and ending ---------------------------------------------------------------------------------


def test_a_job_starts_when_its_last_node_is_there() -> None:
    """Nothing is ordered before; then every node gets the same plan, with the ranks in order."""
    play = scene(3)
    play.announce("0")
    play.announce("1")
    assert (JobPhase.GATHERING, []) == (play.job.phase, play.orders(Start))

    play.announce("2")

    assert ["0", "1", "2"] == play.orders(Start)
    assert JobPhase.STARTING == play.job.phase
    plans = {effect.order.plan.generation for effect in play.effects if isinstance(effect, SendOrder) and isinstance(effect.order, Start)}  # noqa: E501  # fmt: skip
    assert {1} == plans


def test_an_elastic_job_starts_with_fewer_nodes_after_the_last_call() -> None:
    """With MIN:MAX nodes the missing ones are waited for, but not for ever."""
    play = scene(3, last_call_s=30.0)
    play.job = replace(play.job, options=replace(play.options, min_nodes=2))
    play.announce("0")
    play.announce("1")
    play.step(Ticked(play.at(29.0)))
    assert JobPhase.GATHERING == play.job.phase

    play.step(Ticked(play.at(2.0)))

    assert ["0", "1"] == play.orders(Start)


def test_success_of_all_ranks_ends_the_job() -> None:
    """The job is over when each process has ended with 0, not before."""
    play = scene(2).running()
    play.exited("0", DONE)
    assert [] == play.orders(Finish)

    play.exited("1", DONE)

    assert ["0", "1"] == play.orders(Finish)
    assert (ExitCode.OK, "all 2 ranks finished") == (play.ending.code, play.ending.reason)


def test_a_process_may_end_before_its_node_has_said_that_it_started() -> None:
    """A very short program: the exit is reported first, and counts."""
    play = scene(1)
    play.announce("0")
    play.exited("0", DONE)

    play.report("0", WorkersStarted(1, (WorkerView(0, 0, 10, WorkerState.RUNNING),)))

    assert JobPhase.FINISHING == play.job.phase


def test_a_stop_request_ends_the_job_and_its_open_incident() -> None:
    """Ctrl-C in the middle of a recovery: every node is told, and no incident stays open."""
    play = scene(2).running()
    play.exited("0", KILLED)

    play.step(StopRequested(play.at(), "SIGINT was received", 130))

    assert ["0", "1"] == play.orders(Finish)
    assert ["job ended"] == [incident.outcome for incident in play.incidents.values()]
    again = play.step(StopRequested(play.at(), "SIGINT was received", 130))
    assert () == again


def test_the_manager_leaves_only_when_every_agent_is_done() -> None:
    """EndJob comes with the last answer, or when the silent ones are given up."""
    play = scene(2).running()
    play.step(StopRequested(play.at(), "enough", 0))
    play.report("0", OrderDone(jobread.FINISH_ORDER, ok=True))
    assert JobPhase.FINISHING == play.job.phase

    effects = play.lost("1")

    assert (EndJob(Ending(0, "enough")),) == effects


def test_an_agent_that_never_answers_the_end_is_not_waited_for_forever() -> None:
    """Grace and margin bound the end of a job."""
    play = scene(1).running()
    play.step(StopRequested(play.at(), "enough", 0))

    effects = play.step(Ticked(play.at(play.options.stop_grace_s + machine.FINISH_MARGIN_S)))

    assert (EndJob(Ending(0, "enough")),) == effects


def test_a_newborn_manager_that_is_told_to_stop_waits_for_agents_to_find_it() -> None:
    """Otherwise it would leave at once, and the agents would go on without a manager."""
    play = scene(1)
    play.step(StopRequested(play.at(), "enough", 0))
    assert JobPhase.FINISHING == play.job.phase

    assert ["0"] == [effect.node for effect in play.announce("0") if isinstance(effect, SendOrder)]


# --- faults ----------------------------------------------------------------------------------------------


def test_a_killed_process_restarts_all_ranks() -> None:
    """Stop everywhere, then a new generation everywhere; the incident tells why and that it is over."""
    play = scene(2).running()

    play.exited("1", KILLED, step=7)
    assert ["0", "1"] == play.orders(Stop)
    play.restart()

    assert (JobPhase.RUNNING, 2, 1) == (play.job.phase, play.job.generation, play.job.restarts)
    incident = play.incidents[1]
    assert ("recovered", 1, 7) == (incident.outcome, incident.rank, incident.step)
    assert "rank 1 (node 1, pid 11) was ended by SIGKILL at step 7" == incident.what


def test_two_ranks_dying_together_cost_one_restart() -> None:
    """A second death while the others are being stopped changes nothing."""
    play = scene(2).running()
    play.exited("0", KILLED)

    assert () == play.exited("1", KILLED)
    play.restart()

    assert (1, 1, 2) == (len(play.incidents), play.job.restarts, play.job.generation)


def test_nothing_starts_before_everything_has_stopped() -> None:
    """Two generations never run at the same time."""
    play = scene(3).running()
    play.exited("0", KILLED)
    play.stopped("0")
    play.stopped("2")
    assert ([], JobPhase.STOPPING) == (play.orders(Start), play.job.phase)

    play.stopped("1")

    assert ["0", "1", "2"] == play.orders(Start)


def test_the_root_cause_is_the_one_with_the_earlier_error() -> None:
    """A peer that fails on the broken connection may be noticed first; the error files tell the order."""
    play = scene(2).running()
    play.exited("1", RAISED, stamp=50.2)
    play.exited("0", RAISED, stamp=50.0)
    play.restart()

    assert (0, "0", 50.0) == (play.incidents[1].rank, play.incidents[1].node, play.incidents[1].failed_stamp)
    assert {"0": 1} == play.job.budget.used


def test_a_later_error_does_not_take_the_blame() -> None:
    """The other way round nothing is corrected."""
    play = scene(2).running()
    play.exited("1", RAISED, stamp=50.0)
    play.exited("0", RAISED, stamp=50.2)

    assert 1 == play.incidents[1].rank


def test_a_fault_while_starting_begins_another_incident() -> None:
    """The interrupted one says by which; both have an outcome in the end."""
    play = scene(2).running()
    play.exited("0", KILLED)
    play.stopped("0")
    play.stopped("1")
    play.started("0")
    play.exited("0", KILLED)
    play.restart()

    assert {1: "interrupted by fault 2", 2: "recovered"} == {
        number: incident.outcome for number, incident in play.incidents.items()
    }
    assert (3, 2) == (play.job.generation, play.job.restarts)


def test_an_incident_is_over_when_the_job_is_as_far_as_before() -> None:
    """A script that joined and made steps has recovered at the first step after the fault, not before."""
    play = scene(1).running()
    play.report("0", Progress(1, 0, joined=True, step=3))
    play.exited("0", KILLED, step=3)
    play.restart()
    assert "recovering" == play.incidents[1].outcome

    play.report("0", Progress(2, 0, joined=True, step=-1))
    assert "recovering" == play.incidents[1].outcome
    play.report("0", Beat(2, {0: 3}, (0,)))

    assert "recovered" == play.incidents[1].outcome
    assert ["detect", "decide", "release", "spawn", "join", "first step"] == list(
        play.incidents[1].phases_ms()
    )


# --- when to give up -------------------------------------------------------------------------------------


def test_max_restarts_0_means_0() -> None:
    """The first fault ends the job, with the code of the rank and the flag in the reason."""
    play = scene(2, max_restarts=0).running()
    play.exited("1", Exit(code=3))
    play.restart()

    assert ([], 3) == (play.orders(Start), play.ending.code)
    assert "restarts are off (--max-restarts 0)" in play.ending.reason
    assert "job ended" == play.incidents[1].outcome


def test_the_budget_is_that_of_a_container() -> None:
    """One fault of each of two nodes is not two faults of one."""
    play = scene(2, max_restarts=1).running()
    for node in ("0", "1"):
        play.exited(node, KILLED)
        play.restart()
    assert (JobPhase.RUNNING, {"0": 1, "1": 1}) == (play.job.phase, play.job.budget.used)

    play.exited("1", KILLED)
    play.restart()

    assert 137 == play.ending.code
    assert "all 1 restarts of this node are used up" in play.ending.reason


def test_the_same_failure_at_the_same_place_ends_the_job() -> None:
    """A bug at step 12 is not a fault: three times is enough, and the reason says so."""
    play = scene(1).running()
    for _ in range(3):
        play.exited("0", RAISED, step=12, place="train.py:40")
        play.restart()

    assert (JobPhase.FINISHING, 1) == (play.job.phase, play.ending.code)
    assert "the same failure at the same place 3 times in a row" in play.ending.reason


def test_progress_between_failures_starts_the_count_again() -> None:
    """Failing at different steps is a run of bad luck, not a bug."""
    play = scene(1).running()
    for at_step in (12, 12, 40, 40, 77):
        play.exited("0", RAISED, step=at_step, place="train.py:40")
        play.restart()

    assert JobPhase.RUNNING == play.job.phase


def test_the_count_survives_a_correction_of_the_blame() -> None:
    """Each time another peer is noticed first; the one that really fails is counted all the same."""
    play = scene(2).running()
    for _ in range(3):
        play.exited("1", RAISED, step=12, stamp=9.5, place="peer.py:1")
        play.exited("0", RAISED, step=12, stamp=9.0, place="train.py:40")
        play.restart()

    assert JobPhase.FINISHING == play.job.phase
    assert "rank 0" in play.ending.reason


def test_keep_trying_goes_on() -> None:
    """The user's wish is stronger than the suspicion."""
    play = scene(1, keep_trying=True).running()
    for _ in range(20):
        play.exited("0", RAISED, step=12)
        play.restart()

    assert (JobPhase.RUNNING, 20) == (play.job.phase, play.job.restarts)


def test_kill_9_is_never_the_same_failure_where_no_step_is_known() -> None:
    """A signal from outside says nothing about the program."""
    play = scene(1).running()
    for _ in range(20):
        play.exited("0", KILLED)
        play.restart()

    assert JobPhase.RUNNING == play.job.phase


def test_kill_9_at_the_same_step_counts_after_ten_rounds() -> None:
    """The OOM killer at the same step each time is the program's doing after all."""
    play = scene(1).running()
    for _ in range(9):
        play.exited("0", KILLED, step=5)
        play.restart()
    assert JobPhase.RUNNING == play.job.phase

    play.exited("0", KILLED, step=5)
    play.restart()

    assert (JobPhase.FINISHING, 137) == (play.job.phase, play.ending.code)


# --- nodes -----------------------------------------------------------------------------------------------


def test_a_lost_node_is_waited_for_and_used_again() -> None:
    """Its loss costs one restart; the others wait, stopped, until it is there again."""
    play = scene(2).running()
    play.lost("1")
    assert ["0"] == play.orders(Stop)
    play.stopped("0")
    assert (JobPhase.GATHERING, []) == (play.job.phase, play.orders(Start))

    play.announce("1", "b")

    assert ["0", "1"] == play.orders(Start)
    play.started("0")
    play.started("1", "b")
    assert (JobPhase.RUNNING, 1, {"1": 1}) == (play.job.phase, play.job.restarts, play.job.budget.used)


def test_a_node_that_never_comes_back_ends_the_job() -> None:
    """With its own code, a sentence that says what to do, and no incident left open."""
    play = scene(2, join_timeout_s=60.0).running()
    play.lost("1")
    play.stopped("0")
    play.step(Ticked(play.at(61.0)))

    assert (ExitCode.NODES_MISSING, ["0"]) == (play.ending.code, play.orders(Finish))
    assert "1 of 2 nodes were there after 60 s" in play.ending.reason
    assert "job ended" == play.incidents[1].outcome


def test_an_agent_that_was_replaced_costs_one_restart() -> None:
    """Its processes died with it, whether or not anybody saw the agent die."""
    play = scene(2).running()

    play.announce("1", "b")
    play.stopped("0")

    assert (JobPhase.STARTING, {"1": 1}) == (play.job.phase, play.job.budget.used)
    assert ["0", "1"] == play.orders(Start)


def test_the_same_processes_in_a_new_conversation_are_no_fault() -> None:
    """An agent that announces itself again, with what already runs, changes nothing."""
    play = scene(2).running()

    effects = play.announce(
        "1", "b", phase=NodePhase.RUNNING, generation=1, plan=play.job.plan, workers=(play.view("1"),)
    )

    assert ((), JobPhase.RUNNING) == (effects, play.job.phase)


def test_a_node_that_comes_back_into_a_job_that_went_on_stops_what_it_has_left() -> None:
    """An elastic job restarted without it; its old processes must not live beside the new ones."""
    play = scene(2, last_call_s=0.0).running()
    play.job = replace(play.job, options=replace(play.options, min_nodes=1))
    old = play.job.plan
    play.lost("1")
    play.stopped("0")
    play.step(Ticked(play.at(1.0)))
    play.started("0")
    assert (JobPhase.RUNNING, 2) == (play.job.phase, play.job.generation)

    effects = play.announce("1", "b", phase=NodePhase.RUNNING, generation=1, plan=old)

    assert [("1/stop", 1)] == [
        (effect.order.order, effect.order.generation)
        for effect in effects
        if isinstance(effect, SendOrder) and isinstance(effect.order, Stop)
    ]


def test_a_node_that_comes_back_with_old_processes_is_waited_for_until_they_are_gone() -> None:
    """It was only out of reach; a new generation must not begin beside what it still runs."""
    play = scene(2).running()
    old = play.job.plan
    play.lost("1", "no sign of life")
    play.stopped("0")

    play.announce("1", "b", phase=NodePhase.RUNNING, generation=1, plan=old)
    play.step(Ticked(play.at()))
    assert (["0", "1"], []) == (play.orders(Stop), play.orders(Start))
    play.stopped("1", "b")

    assert ["0", "1"] == play.orders(Start)


def test_a_node_with_a_rank_that_does_not_exist_is_sent_away() -> None:
    """A wrong --node-rank is the user's mistake, and is said so."""
    play = scene(2)
    message = Announce("9", 7, "10.0.0.1", "host", 1, "boot", 1, 29500)

    effects = play.step(NodeAnnounced(play.at(), play.now, "9a", message))

    orders = [effect.order for effect in effects if isinstance(effect, SendOrder)]
    assert [ExitCode.USAGE] == [order.code for order in orders if isinstance(order, Finish)]
    assert {} == play.job.nodes


# --- fencing ---------------------------------------------------------------------------------------------


def test_reports_of_an_older_generation_change_nothing() -> None:
    """Whatever was under way when the generation was raised is refused, with the reason."""
    play = scene(2).running()
    play.exited("0", KILLED)
    play.restart()
    before = play.job

    for stale in (
        WorkersStarted(1, ()),
        WorkerExited(1, 0, 0, 9, KILLED, 5, 1.0, play.now),
        WorkersStopped(1, 29500),
        Progress(1, 0, joined=True, step=5),
    ):
        effects = play.report("0", stale)
        assert [Refuse] == [type(effect) for effect in effects], stale
    play.report("0", Beat(1, {0: 5}, (0,)))

    assert before == play.job


def test_reports_of_an_unknown_life_are_refused() -> None:
    """An agent that was replaced has nothing to say any more."""
    play = scene(1).running()
    before = play.job

    effects = play.report("0", WorkersStopped(1, 29500), life="z")

    assert (before, [Refuse]) == (play.job, [type(effect) for effect in effects])


def test_a_late_answer_to_the_stop_does_not_hide_a_start() -> None:
    """The node was idle and not waited for; its answer comes after the next start was ordered."""
    play = scene(2).running()
    play.announce("1", "b")
    play.stopped("0")
    assert (JobPhase.STARTING, 2) == (play.job.phase, play.job.generation)
    play.report("1", WorkersStopped(1, 29500), "b")

    play.exited("0", KILLED)
    play.stopped("0")

    assert JobPhase.STOPPING == play.job.phase
