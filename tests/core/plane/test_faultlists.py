import pytest

from taskd.core.faults.view import FaultKind, RankFault
from taskd.core.plane.faultlists import (
    BadFaults,
    Shape,
    acting,
    describe,
    merge,
    parse_faults,
    retryable,
    slowing,
)

SHAPE = Shape(2, 8)


def test_a_list_is_sorted_and_a_rank_is_in_it_once() -> None:
    """The order of the sender does not matter; two kinds for one rank make the normal one."""
    found = parse_faults((("15", "1"), ("2", "0"), ("2", "2"), ("0", "0")), SHAPE)

    assert {0: FaultKind.UCE, 2: FaultKind.NORMAL, 15: FaultKind.NORMAL} == found
    assert [0, 2, 15] == list(found)


@pytest.mark.parametrize("rank", ["16", "-1", "", " 1", "1.0", "0x1", "\u0661", "9" * 30])
def test_a_rank_that_there_is_not_refuses_the_list(rank: str) -> None:
    """Also one just beyond the last, and digits of other scripts."""
    with pytest.raises(BadFaults, match="rank"):
        parse_faults((("1", "1"), (rank, "1")), SHAPE)


@pytest.mark.parametrize("kind", ["3", "", "00", "-0", "one"])
def test_a_type_that_there_is_not_refuses_the_list(kind: str) -> None:
    """There are 0, 1 and 2."""
    with pytest.raises(BadFaults, match="none of 0, 1, 2"):
        parse_faults((("1", kind),), SHAPE)


def test_only_one_kind_of_passing_faults_can_be_retried() -> None:
    """Memory or network, not both, and nothing else beside."""
    uce, network, normal = {1: FaultKind.UCE}, {2: FaultKind.NETWORK}, {3: FaultKind.NORMAL}

    assert [True, True, False, False, False] == [
        retryable(faults) for faults in (uce, network, merge(uce, network), merge(uce, normal), {})
    ]


def test_what_devices_say_is_sorted_by_what_it_means() -> None:
    """What ends a rank, what slows it, and what means nothing; the lasting fault of a rank counts."""
    view = (
        RankFault(1, FaultKind.UCE, "RestartBusiness", "a"),
        RankFault(1, FaultKind.NORMAL, "SeparateNPU", "b"),
        RankFault(2, FaultKind.NORMAL, "SubHealthFault", "c"),
        RankFault(3, FaultKind.NORMAL, "NotHandleFault", "d"),
        RankFault(4, FaultKind.NORMAL, "PreSeparateNPU", "e"),
    )

    assert {1: "b"} == {rank: fault.code for rank, fault in acting(view).items()}
    assert {2: "c"} == {rank: fault.code for rank, fault in slowing(view).items()}


def test_a_long_list_is_told_briefly() -> None:
    """Eight ranks by name, the others by number."""
    text = describe(dict.fromkeys(range(100), FaultKind.NORMAL))

    assert text.startswith("rank 0 (type 1), rank 1 (type 1)")
    assert text.endswith("and 92 more")
