"""Messages that a new process finds: the last word on each fault counts."""

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.faults.levels import Level
from taskd.core.faults.public import Assertion, PublicFault, PublicKind, PublicReport
from taskd.core.faults.restoring import settle_messages

from .scenes import NODE, OTHER, T0


def report(
    stamp: float, assertion: Assertion, name: str = "fault-1", nodes: tuple[str, ...] = (NODE,)
) -> PublicReport:
    where = tuple((node, (0,)) for node in nodes)
    fault = PublicFault("CCAE", name, PublicKind.NPU, "220001001", Level.SEPARATE, stamp, assertion, where)
    return PublicReport((fault,), (), stamp)


def words(found: PublicReport) -> list[tuple[str, str]]:
    return [(fault.influence[0][0], fault.assertion.value) for fault in found.faults]


@given(st.permutations([report(T0 - 3, Assertion.OCCUR), report(T0 - 2, Assertion.RECOVER)]))
def test_what_was_recovered_does_not_come_back(messages: list[PublicReport]) -> None:
    """In whatever order the ConfigMaps are listed; the recovery is passed on."""
    assert [(NODE, "recover")] == words(settle_messages(messages, T0))


def test_each_node_has_its_own_last_word() -> None:
    """A fault of two nodes that one of them has left behind."""
    messages = [
        report(T0 - 3, Assertion.OCCUR, nodes=(NODE, OTHER)),
        report(T0 - 2, Assertion.RECOVER, nodes=(OTHER,)),
    ]
    assert [(NODE, "occur"), (OTHER, "recover")] == words(settle_messages(messages, T0))


def test_what_happened_once_happens_only_when_it_is_new() -> None:
    """A message of an hour ago is not news."""
    messages = [report(T0 - 3600, Assertion.ONCE), report(T0 - 1, Assertion.ONCE, "fault-2")]
    assert [T0 - 1] == [fault.time for fault in settle_messages(messages, T0).faults]


def test_what_is_wrong_in_a_message_is_passed_on() -> None:
    """It is told, as at any other time."""
    assert ("x",) == settle_messages([PublicReport((), ("x",), T0)], T0).left_out
