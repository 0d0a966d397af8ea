"""The variables of the environment that say something about a job, whichever launcher reads them.

``taskd run`` and a patched torchrun read the same ones; a mistake in one is told before anything starts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from taskd.core.hangs import HangLimitError, parse_limits
from taskd.core.hccl import VariableError, parse_op_retry
from taskd.core.launch import FaultKind, ScheduledFault

HANG_FLOOR, HANG_CEILING = "TASKD_HANG_FLOOR", "TASKD_HANG_CEILING"
UCE_STEP_AND_RANK = "RAISE_UCE_ERROR_STEP_AND_RANK"

_PAIR = re.compile(r"\s*[\"']?(\d{1,9})[\"']?\s*:\s*[\"']?(\d{1,9})[\"']?\s*")


@dataclass(frozen=True, slots=True)
class JobVariables:
    """What they say."""

    hang_floor_s: float
    hang_ceiling_s: float
    faults: tuple[ScheduledFault, ...]


def read_variables(
    env: Mapping[str, str], world_size: int, floor: str | None = None, ceiling: str | None = None
) -> JobVariables:
    """Read them all; raises VariableError, or HangLimitError about a limit that came as an argument."""
    parse_op_retry(env)  # HCCL reads it itself; here it only must be right
    floor_s, ceiling_s = read_hang_limits(env, floor, ceiling)
    return JobVariables(floor_s, ceiling_s, parse_uce_faults(env, world_size))


def read_hang_limits(env: Mapping[str, str], floor: str | None, ceiling: str | None) -> tuple[float, float]:
    """Read the limits of a hang; what is given as an argument goes before the environment."""
    chosen = {
        "floor": env.get(HANG_FLOOR) if floor is None else floor,
        "ceiling": env.get(HANG_CEILING) if ceiling is None else ceiling,
    }
    try:
        return parse_limits(chosen["floor"], chosen["ceiling"])
    except HangLimitError as error:
        given = floor if error.which == "floor" else ceiling
        if given is not None:
            raise
        name = HANG_FLOOR if error.which == "floor" else HANG_CEILING
        raise VariableError(name, chosen[error.which] or "", str(error)) from error


def parse_uce_faults(env: Mapping[str, str], world_size: int) -> tuple[ScheduledFault, ...]:
    """Parse the reference's way to order memory errors for a test: ``{3:8}`` is step 3 of rank 8."""
    text = env.get(UCE_STEP_AND_RANK, "").strip()
    if not text:
        return ()
    rule = "it names steps and ranks as in {3:8,10:9}: at step 3 rank 8, at step 10 rank 9"
    if not text.startswith("{") or not text.endswith("}"):
        raise VariableError(UCE_STEP_AND_RANK, text, rule)
    faults = []
    for number, entry in enumerate(filter(str.strip, text[1:-1].split(",")), start=1):
        found = _PAIR.fullmatch(entry)
        if found is None:
            raise VariableError(UCE_STEP_AND_RANK, text, f"{rule}; {entry.strip()} is not")
        step, rank = int(found.group(1)), int(found.group(2))
        if rank >= world_size:
            why = f"rank {rank} does not exist; the job's ranks are 0 to {world_size - 1}"
            raise VariableError(UCE_STEP_AND_RANK, text, why)
        faults.append(ScheduledFault(f"env-{number}", FaultKind.UCE, rank=rank, step=step))
    return tuple(faults)
