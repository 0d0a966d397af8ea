"""The reference's variables are read as documented; a mistake is a sentence with the variable's name."""

import pytest

from taskd.core.hangs import CEILING_S, FLOOR_S, HangLimitError
from taskd.core.hccl import OperatorRetry, VariableError, parse_op_retry, watchdogs_of_taskd
from taskd.core.launch import DEFAULT_STRATEGIES, FaultKind, ScheduledFault
from taskd.core.variables import parse_uce_faults, read_hang_limits, read_variables


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("L0:0, L1:1, L2:1", OperatorRetry(in_server=False, between_servers=True, between_pods=True)),
        ("L0:0,L1:0,L2:0", OperatorRetry()),
        ("L0:1", OperatorRetry(in_server=True)),
        ("L1:1, L2:0", OperatorRetry(between_servers=True)),
        (" L2 : 1 ", OperatorRetry(between_pods=True)),
    ],
)
def test_s3_9_operator_retry_is_parsed(text: str, expected: OperatorRetry) -> None:
    """S3-9 and S3-12: MindSpeed's and MindFormers' scripts write the same."""
    assert expected == parse_op_retry({"HCCL_OP_RETRY_ENABLE": text})
    assert ("1" in text.replace("L1", "")) == expected.on


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("HCCL_OP_RETRY_ENABLE", "1", "L0:0, L1:1, L2:1"),
        ("HCCL_OP_RETRY_ENABLE", "", "an empty entry"),
        ("HCCL_OP_RETRY_ENABLE", "L0:0, L1:2", "L1 is 0 or 1"),
        ("HCCL_OP_RETRY_ENABLE", "L3:1", "no level L3"),
        ("HCCL_OP_RETRY_ENABLE", "L1:1,L1:0", "twice"),
        ("HCCL_OP_RETRY_ENABLE", "L1=1", "L1=1 is not"),
        ("HCCL_OP_RETRY_PARAMS", "MaxCnt:11", "from 1 to 10"),
        ("HCCL_OP_RETRY_PARAMS", "Count:3", "no Count"),
    ],
)
def test_s3_12_a_wrong_operator_retry_is_refused(name: str, text: str, word: str) -> None:
    """Before anything starts, in one sentence that names the variable."""
    with pytest.raises(VariableError, match=name) as caught:
        read_variables({name: text}, 4)

    assert name == caught.value.name
    assert word in str(caught.value)
    assert "correct or unset it" in str(caught.value)


def test_parameters_of_the_operator_retry() -> None:
    """As Ascend's documentation writes them; they are HCCL's own, and turn no level on."""
    params = {"HCCL_OP_RETRY_PARAMS": "MaxCnt:3, HoldTime:5000, IntervalTime:1000"}
    assert OperatorRetry() == parse_op_retry(params)
    assert OperatorRetry(between_pods=True) == parse_op_retry({**params, "HCCL_OP_RETRY_ENABLE": "L2:1"})


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, ("HCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING")),
        ({"HCCL_ASYNC_ERROR_HANDLING": "1"}, ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, ("HCCL_ASYNC_ERROR_HANDLING",)),
        ({"NCCL_ASYNC_ERROR_HANDLING": "1", "HCCL_ASYNC_ERROR_HANDLING": "0"}, ()),
    ],
)
def test_s3_10_a_watchdog_that_the_user_set_stays(env: dict[str, str], expected: tuple[str, ...]) -> None:
    """Only those that nobody set are TaskD's to turn off."""
    assert expected == watchdogs_of_taskd(env, DEFAULT_STRATEGIES)


def test_s3_10_without_recovery_in_the_process_the_watchdog_stays_on() -> None:
    """Where every fault is answered with a restart, it is right to end a process whose collective failed."""
    assert () == watchdogs_of_taskd({}, ("dump", "exit"))


def test_s3_10_a_strategy_that_is_not_built_turns_no_watchdog_off() -> None:
    """``elastic-training`` is skipped, and a restart follows. Beside ``retry`` it makes no difference."""
    assert () == watchdogs_of_taskd({}, ("elastic-training", "exit"))
    assert watchdogs_of_taskd({}, ("retry",)) == watchdogs_of_taskd({}, ("retry", "elastic-training"))


@pytest.mark.parametrize(
    "text", ["{3:8,10:9}", "{3:8, 10:9}", " { 3 : 8 , 10 : 9 } ", '{"3":8,"10":9}', "{3:8,10:9,}"]
)
def test_s3_13_steps_and_ranks_of_memory_errors(text: str) -> None:
    """The reference's loose syntax."""
    expected = (
        ScheduledFault("env-1", FaultKind.UCE, rank=8, step=3),
        ScheduledFault("env-2", FaultKind.UCE, rank=9, step=10),
    )
    assert expected == parse_uce_faults({"RAISE_UCE_ERROR_STEP_AND_RANK": text}, 16)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("3:8", "as in"),
        ("{3}", "3 is not"),
        ("{a:1}", "a:1 is not"),
        ("{3:16}", "0 to 15"),
        ("{3:-1}", "is not"),
    ],
)
def test_s3_13_a_mistake_is_named(text: str, word: str) -> None:
    """Also a rank that the job does not have: its fault would never fire."""
    with pytest.raises(VariableError, match="RAISE_UCE_ERROR_STEP_AND_RANK") as caught:
        parse_uce_faults({"RAISE_UCE_ERROR_STEP_AND_RANK": text}, 16)

    assert word in str(caught.value)


def test_an_unset_variable_says_nothing() -> None:
    """The defaults."""
    found = read_variables({"RAISE_UCE_ERROR_STEP_AND_RANK": ""}, 4)
    assert (FLOOR_S, CEILING_S, ()) == (found.hang_floor_s, found.hang_ceiling_s, found.faults)


def test_limits_of_a_hang_from_the_environment() -> None:
    """An argument goes before it."""
    env = {"TASKD_HANG_FLOOR": "5", "TASKD_HANG_CEILING": "50"}
    assert (5.0, 50.0) == read_hang_limits(env, None, None)
    assert (7.0, 50.0) == read_hang_limits(env, "7", None)


def test_a_wrong_limit_is_named_by_where_it_stands() -> None:
    """The variable if it came from there; an argument is for the caller to name."""
    with pytest.raises(VariableError, match="TASKD_HANG_CEILING=1"):
        read_hang_limits({"TASKD_HANG_CEILING": "1"}, "5", None)
    with pytest.raises(HangLimitError):
        read_hang_limits({}, "x", None)
