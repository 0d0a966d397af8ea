"""Which nodes are closed to new pods, and which are only the last choice."""

import pytest

from taskd.core.faults.isolating import Scope, isolation
from taskd.core.faults.levels import AnyLevel, Level, NodeLevel, SwitchLevel
from taskd.core.faults.state import Fault, NodeRecord


def node(*faults: Fault) -> NodeRecord:
    return NodeRecord("n1", faults=faults)


def fault(
    level: AnyLevel, chip: int = -1, code: str = "80E18005", reason: str = "", hidden: str = ""
) -> Fault:
    return Fault("Card", "NPU", str(chip), chip, code, level, None, reason=reason, hidden=hidden)


@pytest.mark.parametrize(
    ("level", "chip", "scope"),
    [
        (NodeLevel.SEPARATE, -1, Scope.NODE),
        (NodeLevel.PRE_SEPARATE, -1, Scope.NODE),
        (SwitchLevel.SEPARATE, -1, Scope.NODE),
        (Level.SEPARATE, 3, Scope.DEVICE),
        (Level.PRE_SEPARATE, 3, Scope.DEVICE),
        (Level.MANUALLY_SEPARATE, 3, Scope.DEVICE),
        (Level.NOT_HANDLE, 3, None),
        (NodeLevel.NOT_HANDLE, -1, None),
    ],
)
def test_what_a_level_closes(level: AnyLevel, chip: int, scope: Scope | None) -> None:
    found = isolation(node(fault(level, chip)), ignores_sub_health=True)

    assert scope == (found.scope if found else None)


@pytest.mark.parametrize("level", [Level.SUB_HEALTH, NodeLevel.SUB_HEALTH, SwitchLevel.SUB_HEALTH])
def test_a_slow_node_is_closed_to_jobs_that_mind(level: AnyLevel) -> None:
    slow = node(fault(level, 3))

    assert isolation(slow, ignores_sub_health=True) is None
    found = isolation(slow, ignores_sub_health=False)
    assert found is not None
    assert Scope.NODE is found.scope


def test_what_may_heal_in_place_closes_nothing() -> None:
    young = node(fault(Level.RESTART_BUSINESS, 3, hidden="processes may be restarted in place"))

    assert isolation(young, ignores_sub_health=True) is None


def test_the_worst_is_told() -> None:
    found = isolation(
        node(fault(Level.SEPARATE, 3), fault(NodeLevel.SEPARATE, code="", reason="not ready")),
        ignores_sub_health=True,
    )

    assert found is not None
    assert {"name": "n1", "scope": "node", "reason": "the node: SeparateFault (not ready)"} == found.as_json()
