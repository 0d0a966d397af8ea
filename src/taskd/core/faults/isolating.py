"""Which nodes nothing new shall be placed on, and why.

A chip that is out is kept apart by its device plugin, so its node is only the last choice; a fault of the
node as a whole, or a slow one in a job that minds, closes the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from taskd.core.faults.levels import Effect
from taskd.core.faults.nodesight import UNPLUGGED
from taskd.core.faults.places import WHOLE
from taskd.core.faults.state import Fault, NodeRecord


class Scope(StrEnum):
    """What is isolated."""

    NODE = "node"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Isolated:
    """A node that new pods stay away from."""

    node: str
    scope: Scope
    reason: str

    def as_json(self) -> dict[str, str]:
        """As it stands in a job's status."""
        return {"name": self.node, "scope": self.scope.value, "reason": self.reason}


def isolation(record: NodeRecord, *, ignores_sub_health: bool) -> Isolated | None:
    """How a node is isolated for a job; None where it is as good as any."""
    causes = {fault: _scope(fault, ignores_sub_health=ignores_sub_health) for fault in record.faults}
    found = [(fault, scope) for fault, scope in causes.items() if scope is not None]
    if not found:
        return None
    fault, scope = min(found, key=lambda each: (each[1] is not Scope.NODE, -each[0].effect, each[0].key))
    what = " ".join(part for part in (fault.level.value, fault.code) if part)
    where = "the node" if fault.chip == WHOLE else f"device {fault.chip}"
    return Isolated(record.name, scope, f"{where}: {what}" + (f" ({fault.reason})" if fault.reason else ""))


def _scope(fault: Fault, *, ignores_sub_health: bool) -> Scope | None:
    match fault.effect:
        case Effect.NOTHING:
            return None
        case Effect.SUB_HEALTH:
            return None if ignores_sub_health else Scope.NODE
        case Effect.PRE_SEPARATE | Effect.FAULT:
            if fault.hidden:
                return None  # the training side may yet heal it where it is
            return Scope.NODE if fault.chip == WHOLE and fault.code != UNPLUGGED else Scope.DEVICE
