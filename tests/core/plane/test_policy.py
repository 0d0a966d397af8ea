import pytest

from taskd.core.plane.names import Strategy
from taskd.core.plane.policy import Scheduling, SubHealth, read_policy

GRACE = {"fault-scheduling": "grace"}


def test_strategies_are_trimmed_and_sorted_by_rank() -> None:
    """Blanks and order in the annotation do not matter, and exit is always there."""
    policy = read_policy(GRACE, {"recover-strategy": " dump ,retry, recover,retry"})

    assert (Strategy.RETRY, Strategy.RECOVER, Strategy.DUMP, Strategy.EXIT) == policy.strategies
    assert "" == policy.refusal
    assert () == policy.problems


def test_a_strategy_that_there_is_not_is_named() -> None:
    """A typing error is told, and what was understood is used."""
    policy = read_policy(GRACE, {"recover-strategy": "recovr,dump,elastic-training"})

    assert (Strategy.DUMP, Strategy.EXIT) == policy.strategies
    assert ["'recovr' is no strategy", "elastic-training is not supported"] == [
        word
        for word, problem in zip(
            ("'recovr' is no strategy", "elastic-training is not supported"), policy.problems, strict=True
        )
        if word in problem
    ]


@pytest.mark.parametrize("labels", [{}, {"fault-scheduling": "off"}, {"fault-scheduling": "of"}])
def test_without_fault_scheduling_nothing_may_be_touched(labels: dict[str, str]) -> None:
    """Absent, off or misspelt: refused with the reason."""
    policy = read_policy(labels, {"recover-strategy": "recover"})

    assert Scheduling.OFF is policy.scheduling
    assert "fault-scheduling is absent or off" in policy.refusal


def test_a_hot_switch_alone_turns_recovery_on() -> None:
    """Another fault on the way has to be answered too. Pods may be replaced then, unless that is off."""
    policy = read_policy({"framework": "pytorch", "subHealthyStrategy": "hotSwitch"}, {})

    assert SubHealth.HOT_SWITCH is policy.sub_health
    assert policy.allows(Strategy.RECOVER)
    assert (Scheduling.GRACE, "") == (policy.scheduling, policy.refusal)
    refused = read_policy({"fault-scheduling": "off", "subHealthyStrategy": "hotSwitch"}, {})
    assert "fault-scheduling" in refused.refusal


@pytest.mark.parametrize(
    ("text", "want"),
    [("", 270.0), ("30", 30.0), ("271", 270.0), ("-5", 270.0), ("x", 270.0), ("\uff14\uff15", 270.0)],
)
def test_the_wait_for_a_pod_stays_in_its_range(text: str, want: float) -> None:
    """What is not from 30 to 270 is told and taken as 270."""
    policy = read_policy(GRACE, {"recover-strategy": "recover", "wait-reschedule-timeout": text})

    assert want == policy.reschedule_s
    assert (text in {"", "30"}) == (not policy.problems)


def test_a_platform_that_decides_is_not_overruled() -> None:
    """Platform mode is not built: nothing is done against the platform's will."""
    policy = read_policy(GRACE, {"recover-strategy": "recover", "ProcessRecoverStrategy": ""})

    assert "not supported" in policy.refusal
