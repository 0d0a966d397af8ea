"""What messages that were found at the start say together.

A ConfigMap with a public fault stays after it was read. A new process finds the old ones in no order, and
must neither bring a fault back that was recovered long ago nor take up again one that happened once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from taskd.core.faults.intake import SHORTEST_S
from taskd.core.faults.public import Assertion, PublicFault, PublicReport


def settle_messages(reports: Iterable[PublicReport], now: float) -> PublicReport:
    """The last word on each fault of each node, as one message.

    A recovery is passed on, since the fault may be one that was kept; it costs nothing where there is none.
    """
    last: dict[tuple[str, str, str], tuple[PublicFault, tuple[int, ...]]] = {}
    left_out: list[str] = []
    for report in sorted(reports, key=lambda report: report.stamp):
        left_out += report.left_out
        for fault in report.faults:
            if fault.assertion is Assertion.ONCE and report.stamp < now - SHORTEST_S:
                continue
            for node, chips in fault.influence:
                last[node, fault.resource, fault.fault_id] = fault, chips
    faults = [
        replace(fault, influence=((node, chips),)) for (node, _, _), (fault, chips) in sorted(last.items())
    ]
    return PublicReport(tuple(faults), tuple(left_out))
