"""Status and timeline for the eye.

A terminal gets rich tables; a pipe, a log or a test gets aligned plain text with the same content, so that
nothing has to be unlearned when a command is put into a script. Both are made from the same rows. rich costs
more to import than everything else here together, so only the functions that draw with it import it.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from taskd.core.perfetto import order_phases
from taskd.core.status import IncidentStatus, JobPhase, JobStatus

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

Row = tuple[str, ...]

_RANK_HEAD: Row = ("rank", "node", "pid", "state", "step")
_NODE_HEAD: Row = ("node", "name", "host", "state", "agent", "proxy", "faults")
_NUMERIC = frozenset({"rank", "pid", "step", "agent", "proxy", "faults", "#", "downtime"})
_COLOURS = {
    "running": "green",
    "joined": "green",
    "succeeded": "green",
    "recovered": "green",
    "failed": "red",
    "lost": "red",
    "disconnected": "red",
    "starting": "yellow",
    "stopping": "yellow",
}


def on_terminal() -> bool:
    """Tell whether a person looks at stdout."""
    return sys.stdout.isatty()


# --- status ----------------------------------------------------------------------------------------------


def describe_job(status: JobStatus) -> list[str]:
    """Return the lines above the tables."""
    phase = str(status.phase)
    if status.phase is JobPhase.ENDED and status.exit_code is not None:
        phase = f"{phase} with code {status.exit_code}"
    first = f"job {status.job}: {phase}" + (f" ({status.reason})" if status.reason else "")
    second = (
        f"generation {status.generation}, {status.restarts} of {status.max_restarts} restarts used, "
        f"{status.world_size} ranks, as of {_clock(status.stamp)}"
    )
    return [first, second, f"last fault: {status.last_fault or 'none'}"]


def rank_rows(status: JobStatus) -> list[Row]:
    """Return one row per rank."""
    return [
        (str(rank.rank), rank.node, _number(rank.pid, 1), rank.state, _number(rank.step))
        for rank in sorted(status.ranks, key=lambda rank: rank.rank)
    ]


def node_rows(status: JobStatus) -> list[Row]:
    """Return one row per node; a node whose proxy is not heard of is shown as that, whatever it last said."""
    return [
        (
            _number(node.node_rank),
            node.node,
            node.host,
            node.state if node.connected or status.phase is JobPhase.ENDED else "disconnected",
            _number(node.agent_pid, 1),
            _number(node.proxy_pid, 1),
            str(node.faults),
        )
        for node in sorted(status.nodes, key=lambda node: (node.node_rank, node.node))
    ]


def plain_status(status: JobStatus) -> str:
    """Lay out a status as aligned text."""
    parts = ["\n".join(describe_job(status))]
    if status.ranks:
        parts.append(align(_RANK_HEAD, rank_rows(status)))
    if status.nodes:
        parts.append(align(_NODE_HEAD, node_rows(status)))
    return "\n\n".join(parts)


def rich_status(status: JobStatus) -> "Group":
    """Lay out a status for a terminal."""
    from rich.console import Group
    from rich.text import Text

    first, *others = describe_job(status)
    parts: list[Text | Table] = [Text(first, style="bold"), *(Text(line) for line in others)]
    if status.ranks:
        parts.append(_rich_table(_RANK_HEAD, rank_rows(status)))
    if status.nodes:
        parts.append(_rich_table(_NODE_HEAD, node_rows(status)))
    return Group(*parts)


# --- timeline --------------------------------------------------------------------------------------------


def timeline_table(incidents: Sequence[IncidentStatus]) -> tuple[Row, list[Row]]:
    """Return the head and one row per fault. Only phases that somebody went through have a column."""
    names = [name for name, _ in order_phases({name: 0.0 for one in incidents for name in one.phases_ms})]
    head = ("#", "at", "fault", "where", "step", *(f"{name} ms" for name in names))
    rows = [
        (
            str(one.number),
            _clock(one.stamp),
            one.kind,
            f"rank {one.rank}" if one.rank >= 0 else one.node or "-",
            _number(one.step),
            *(f"{one.phases_ms[name]:.1f}" if name in one.phases_ms else "-" for name in names),
            f"{one.downtime_ms:.1f}",
            one.strategy or "-",
            one.outcome or "-",
            "; ".join((one.reason or one.what, *one.notes)),
        )
        for one in incidents
    ]
    return (*head, "downtime ms", "strategy", "outcome", "reason"), rows


def plain_timeline(job: str, incidents: Sequence[IncidentStatus]) -> str:
    """Lay out a timeline as aligned text."""
    if not incidents:
        return f"job {job}: no faults"
    return f"{_count_faults(job, incidents)}\n\n{align(*timeline_table(incidents))}"


def rich_timeline(job: str, incidents: Sequence[IncidentStatus]) -> "Group":
    """Lay out a timeline for a terminal."""
    from rich.console import Group
    from rich.text import Text

    if not incidents:
        return Group(Text(f"job {job}: no faults", style="bold"))
    return Group(Text(_count_faults(job, incidents), style="bold"), _rich_table(*timeline_table(incidents)))


def _count_faults(job: str, incidents: Sequence[IncidentStatus]) -> str:
    total_ms = sum(incident.downtime_ms for incident in incidents)
    noun = "fault" if len(incidents) == 1 else "faults"
    return f"job {job}: {len(incidents)} {noun}, {total_ms:.1f} ms of downtime"


# --- both ------------------------------------------------------------------------------------------------


def print_rich(content: "Group") -> None:
    """Print something of rich's on stdout."""
    from rich.console import Console

    Console().print(content)


def align(head: Row, rows: Iterable[Row]) -> str:
    """Put columns under each other, numbers to the right, the last column as long as it is."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    right = [_is_numeric(name) for name in head]
    lines = []
    for row in table:
        cells = (
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _rich_table(head: Row, rows: Iterable[Row]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if _is_numeric(name) else "left", overflow="fold")
    for row in rows:
        # Text, not str: a reason may hold square brackets, which rich would take for its markup.
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    return table


def _is_numeric(name: str) -> bool:
    return name in _NUMERIC or name.endswith(" ms")


def _number(value: int, low: int = 0) -> str:
    """Show a number, or a dash for one that stands for "none"."""
    return str(value) if value >= low else "-"


def _clock(stamp: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(stamp)) if stamp else "-"
