"""Whatever happens, in whatever order: the machine comes back, answers everybody and forgets nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.faults.texts.reset import RankStatus
from taskd.core.faults.view import FaultKind, Health, RankFault
from taskd.core.plane.faultlists import Shape
from taskd.core.plane.machine import next_look, step
from taskd.core.plane.names import Code
from taskd.core.plane.policy import Policy
from taskd.core.plane.resuming import kept, repeat, resumed
from taskd.core.plane.state import (
    Answer,
    Ask,
    DevicesSeen,
    Effect,
    Event,
    FaultsReported,
    Handed,
    JobGone,
    JobState,
    Moment,
    Phase,
    PodSeen,
    PodsSeen,
    ResetSeen,
    SaveState,
    SendSignal,
    StatusReported,
    StopReported,
    StrategiesReported,
    Subscribed,
    Ticked,
    Unsubscribed,
    Wish,
)
from tests.core.plane.scenes import START, policy

SHAPE = Shape(3, 2)
RESTING = {Phase.INIT, Phase.ENDED}

T = TypeVar("T")

STRATEGIES = ("retry", "recover", "recover-in-place", "dump", "exit")
LEVELS = ("RestartBusiness", "SeparateNPU", "SubHealthFault", "NotHandleFault", "PreSeparateNPU")
CODES = (0, 0, 0, 404, 405, 406, 499, -1, 7)
OFFERS = (*STRATEGIES, "migration", "downgrade", "", "nonsense")


class Fate:
    """Draws what happens; the same numbers bring the same history."""

    def __init__(self, numbers: Random) -> None:
        self.numbers = numbers

    def some(self, choices: Sequence[T], most: int) -> tuple[T, ...]:
        return tuple(self.numbers.choices(choices, k=self.numbers.randint(0, most)))

    def policy(self) -> Policy:
        return policy(
            ",".join(self.some(STRATEGIES, 4)),
            fault_scheduling=self.numbers.choice(("grace", "grace", "force", "off")),
            pod_rescheduling=self.numbers.choice(("on", "off")),
            subHealthyStrategy=self.numbers.choice(
                ("ignore", "graceExit", "forceExit", "hotSwitch", "hotSwitch")
            ),
        )

    def faults(self, *, good: bool) -> tuple[tuple[str, str], ...]:
        ranks = "012345" if good else ("0", "5", "9", "x", "", "-1", "²", "1" * 40)
        kinds = "012" if good else ("0", "1", "7", "")
        count = self.numbers.randint(0, 3)
        return tuple((self.numbers.choice(ranks), self.numbers.choice(kinds)) for _ in range(count))

    def device(self) -> RankFault:
        kind = self.numbers.choice(list(FaultKind))
        level = self.numbers.choice(LEVELS)
        return RankFault(self.numbers.randrange(6), kind, level, self.numbers.choice(("c1", "c2")))

    def devices(self) -> DevicesSeen:
        health = self.numbers.choice(list(Health))
        return DevicesSeen(health, tuple(self.device() for _ in range(self.numbers.randint(0, 3))))

    def pods(self) -> PodsSeen:
        here = [rank for rank in range(SHAPE.pods) if self.numbers.random() < 0.8]
        coin = self.numbers.random
        return PodsSeen(
            {
                rank: PodSeen("pod", self.numbers.choice("aabc"), coin() < 0.8, "s", coin() < 0.5)
                for rank in here
            }
        )

    def resets(self) -> ResetSeen:
        words = (RankStatus.UNRECOVERED, RankStatus.RECOVERED, RankStatus.FAILED)
        return ResetSeen(
            {self.numbers.randrange(6): self.numbers.choice(words) for _ in range(self.numbers.randint(0, 2))}
        )

    def anything(self) -> Event | float:
        uuid = self.numbers.choice(("", "", "", "somebody-else"))
        good = self.numbers.random() < 0.7
        return self.numbers.choice(
            (
                FaultsReported(self.faults(good=good), uuid, self.some((0, 1, 2, 9), 2)),
                StopReported(self.numbers.choice(CODES), self.faults(good=good), uuid),
                StrategiesReported(self.some(OFFERS, 5), self.faults(good=good), uuid),
                StatusReported(self.numbers.choice(CODES), self.numbers.choice(OFFERS), uuid),
                self.devices(),
                self.resets(),
                self.pods(),
                Subscribed(),
                Subscribed(keeps_old=True),
                Unsubscribed(),
                Ticked(),
                self.numbers.uniform(0, 400),
            )
        )

    def fitting(self, state: JobState, number: int) -> Event:
        """What a trainer, an operator and a cluster that work would bring next."""
        match state.phase:
            case Phase.INIT:
                return self.numbers.choice((FaultsReported(self.faults(good=True)), self.devices()))
            case Phase.NOTICING:
                return FaultsReported(self.faults(good=True), cut=self.some((0, 1, 2), 1))
            case Phase.STOPPING:
                return StopReported(0)
            case Phase.ASKING | Phase.PAUSING:
                return StrategiesReported(self.some(OFFERS, 6))
            case Phase.RETRYING | Phase.RECOVERING | Phase.DUMPING | Phase.MIGRATING:
                return StatusReported(self.numbers.choice(CODES), "")
            case Phase.HEALING | Phase.CONVERGING:
                return DevicesSeen(Health.HEALTHY)
            case Phase.STANDBY:
                return PodsSeen(
                    {rank: replace(pod, standby_running=True) for rank, pod in state.pods.items()}
                )
            case _:
                return PodsSeen({rank: PodSeen("pod", f"new-{number}-{rank}") for rank in range(SHAPE.pods)})


def check_step(before: JobState, event: Event, moment: Moment) -> JobState:
    """Take one step and see that every rule of a step holds."""
    after, effects = step(before, event, moment)

    assert after.phase in RESTING or (after.deadline > 0 and after.episode is not None and next_look(after))
    assert (after.phase not in RESTING) == (after.episode is not None)
    check_fences(before, after, effects, moment)
    check_pods(before, effects)
    answers = [each for each in effects if isinstance(each, Answer)]
    if isinstance(event, FaultsReported | StopReported | StrategiesReported | StatusReported):
        assert 1 == len(answers)
        if answers[0].code is not Code.OK:
            past_due = next_look(before) and next_look(before) <= moment.now
            assert before == after or past_due, "a refused report changes nothing"
    else:
        assert [] == answers
    if kept(before) != kept(after):
        assert isinstance(effects[0], SaveState), "the state is kept before anything is done"
    assert kept(after) == msgspec.json.decode(msgspec.json.encode(kept(after)), type=JobState)
    return after


def check_fences(before: JobState, after: JobState, effects: tuple[Effect, ...], moment: Moment) -> None:
    """Every effect names what it belongs to, and no order names a rank or a pod that there is not."""
    last_words = before.outstanding.uuid if before.outstanding else ""
    for effect in effects:
        fits = effect.uuid in {before.uuid, after.uuid, last_words}
        assert fits or effect.uuid.startswith(moment.fresh)
        if isinstance(effect, SendSignal):
            signal = effect.signal
            assert signal.uuid == effect.uuid != ""
            assert sorted(signal.faults) == list(signal.faults)
            assert all(0 <= rank < SHAPE.world for rank in signal.faults)
            assert sorted(set(signal.nodes)) == list(signal.nodes)
            assert all(0 <= node < SHAPE.pods for node in signal.nodes)


def check_pods(before: JobState, effects: tuple[Effect, ...]) -> None:
    """Without fault-scheduling no pod is touched; where no process may be recovered, none is spoken of."""
    asks = [each for each in effects if isinstance(each, Ask)]
    if not before.policy.reschedules:
        assert [] == asks
    if before.policy.unattended:
        assert [] == [each for each in effects if isinstance(each, SendSignal)]
        for ask in asks:
            assert ask.wish in {Wish.REPLACE, Wish.RESTART_JOB}
            whole = ask.wish is Wish.RESTART_JOB
            late = before.phase is Phase.RESCHEDULING
            assert not whole or late or not before.policy.pod_rescheduling


def play(fate: Fate) -> tuple[JobState, float, dict[Phase, tuple[JobState, float]]]:
    """Have up to 30 things happen to a job: half what fits, half anything; now and then a new plane."""
    coin = fate.numbers.random
    whole = PodsSeen({rank: PodSeen("pod", "a") for rank in range(SHAPE.pods)})
    state, _ = step(JobState("job-1", fate.policy(), SHAPE), Subscribed(), Moment(START, "S"))
    state, _ = step(state, whole, Moment(START, "S"))
    now, reached = START, {state.phase: (state, START)}
    for number in range(fate.numbers.randint(0, 30)):
        drawn = fate.anything() if coin() < 0.4 else fate.fitting(state, number)
        if isinstance(drawn, float):
            now += drawn
        before = state
        state = check_step(state, Ticked() if isinstance(drawn, float) else drawn, Moment(now, f"U{number}"))
        reached[state.phase] = (state, now)
        fresh = state.outstanding is not None and state.outstanding != before.outstanding
        if state.connected and fresh and state.outstanding and coin() < 0.9:
            state = check_step(state, Handed(state.outstanding), Moment(now, f"H{number}"))
        if coin() < 0.05:
            again = resumed(kept(state), now)
            check_fences(state, state, repeat(state, now), Moment(now, "R"))
            state = replace(
                again, pods=state.pods, devices=state.devices, slow=state.slow, health=state.health
            )
    return state, now, reached


def run_out(state: JobState, now: float) -> JobState:
    """Let only time pass until nothing is under way."""
    for number in range(100):
        if state.phase in RESTING:
            break
        now = max(now, next_look(state))
        state = check_step(state, Ticked(), Moment(now, f"T{number}"))
    return state


@given(st.randoms(use_true_random=True))
@settings(max_examples=150, deadline=None)
def test_it_comes_back_from_everywhere(numbers: Random) -> None:
    """From any state, with nobody answering any more, the deadlines alone lead back to INIT.

    On the way every report is answered once, a refused one changes nothing, no phase is without a deadline,
    every effect carries the uuid of its episode, and the state survives being written and read at any point.
    """
    state, now, _ = play(Fate(numbers))

    assert run_out(state, now).phase in RESTING


def test_the_search_gets_everywhere() -> None:
    """The same play reaches every phase, and comes back from each of them."""
    reached: Counter[Phase] = Counter()
    for seed in range(500):
        _, _, found = play(Fate(Random(seed)))
        for phase, (state, now) in found.items():
            if reached[phase] < 40:
                assert run_out(state, now).phase in RESTING, f"seed {seed}, from {phase}"
            reached[phase] += 1

    assert set(Phase) - {Phase.ENDED} == set(reached)


@given(st.randoms(use_true_random=True))
@settings(max_examples=30, deadline=None)
def test_a_job_that_is_gone_stays_gone(numbers: Random) -> None:
    """After the end nothing is ordered any more, and reports hear that there is no such job."""
    fate = Fate(numbers)
    state, _, _ = play(fate)
    state, _ = step(state, JobGone("deleted"), Moment(START, "U0"))
    for _ in range(10):
        event = fate.anything()
        if isinstance(event, float):
            continue
        state, effects = step(state, event, Moment(START, "U1"))

        assert Phase.ENDED is state.phase
        assert [] == [each for each in effects if not isinstance(each, Answer | SaveState)]
        assert all(each.code is Code.NO_SUCH_JOB for each in effects if isinstance(each, Answer))
