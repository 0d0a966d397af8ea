"""Ascend's own retry of a communication operator, and the watchdogs of the collective libraries.

Below a retry of the step there is a retry of the single operator, inside HCCL, which the user turns on per
level of the network. TaskD passes it on; but a value that HCCL would not read as meant shows only when the
first link breaks, so it is checked before anything starts. A retry of the step begins when this one has
given up, with ``HCCL OP RETRY FAILED`` (``core.troubles``).

A watchdog of HCCL or NCCL ends a process whose collective failed. That is right where a restart follows, as
it does for a script that knows nothing of TaskD, and wrong where the process is to be recovered.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

OP_RETRY_ENABLE = "HCCL_OP_RETRY_ENABLE"
OP_RETRY_PARAMS = "HCCL_OP_RETRY_PARAMS"
LEVELS = ("L0", "L1", "L2")
PARAMS = {"MaxCnt": (1, 10), "HoldTime": (0, 60_000), "IntervalTime": (0, 60_000)}

HCCL_WATCHDOG = "HCCL_ASYNC_ERROR_HANDLING"
NCCL_WATCHDOG = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
OLD_NCCL_WATCHDOG = "NCCL_ASYNC_ERROR_HANDLING"
WATCHDOG_OFF = "0"
IN_PROCESS = frozenset({"retry", "recover", "recover-in-place"})

_ENTRY = re.compile(r"\s*(\w+)\s*:\s*(\d{1,9})\s*")


class VariableError(ValueError):
    """A variable of the environment that cannot be meant as it is."""

    def __init__(self, name: str, value: str, rule: str) -> None:
        """Make one sentence: where, what, and what it should be."""
        super().__init__(f"{name}={value} in the environment: {rule}; correct or unset it")
        self.name = name


@dataclass(frozen=True, slots=True)
class OperatorRetry:
    """At which levels of the network HCCL repeats a failed operator: L0, L1 and L2."""

    in_server: bool = False
    between_servers: bool = False
    between_pods: bool = False

    @property
    def on(self) -> bool:
        """Tell whether any level is on."""
        return self.in_server or self.between_servers or self.between_pods


def parse_op_retry(env: Mapping[str, str]) -> OperatorRetry:
    """Parse the switches of the operator retry and check its parameters; raises VariableError."""
    _check_params(env)
    text = env.get(OP_RETRY_ENABLE)
    if text is None:
        return OperatorRetry()
    rule = "levels and switches are written as in L0:0, L1:1, L2:1"
    switches = _pairs(OP_RETRY_ENABLE, text, rule)
    for level, switch in switches.items():
        if level not in LEVELS:
            raise VariableError(OP_RETRY_ENABLE, text, f"{rule}; there is no level {level}")
        if switch not in (0, 1):
            raise VariableError(OP_RETRY_ENABLE, text, f"{rule}; {level} is 0 or 1, not {switch}")
    return OperatorRetry(*(switches.get(level, 0) == 1 for level in LEVELS))


def _check_params(env: Mapping[str, str]) -> None:
    text = env.get(OP_RETRY_PARAMS)
    if text is None:
        return
    rule = "it is written as in MaxCnt:3, HoldTime:5000, IntervalTime:1000"
    for key, number in _pairs(OP_RETRY_PARAMS, text, rule).items():
        if key not in PARAMS:
            raise VariableError(OP_RETRY_PARAMS, text, f"{rule}; there is no {key}")
        low, high = PARAMS[key]
        if not low <= number <= high:
            raise VariableError(OP_RETRY_PARAMS, text, f"{key} goes from {low} to {high}")


def _pairs(name: str, text: str, rule: str) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for entry in text.split(","):
        found = _ENTRY.fullmatch(entry)
        if found is None:
            raise VariableError(name, text, f"{rule}; {entry.strip() or 'an empty entry'} is not")
        key = found.group(1)
        if key in pairs:
            raise VariableError(name, text, f"{rule}; {key} is there twice")
        pairs[key] = int(found.group(2))
    return pairs


def watchdogs_of_taskd(env: Mapping[str, str], strategies: tuple[str, ...]) -> tuple[str, ...]:
    """Return the watchdogs that a script which joins must turn off: those that the user did not set.

    None where no strategy keeps a process through a fault.
    """
    if not IN_PROCESS & set(strategies):
        return ()
    names = [HCCL_WATCHDOG] if HCCL_WATCHDOG not in env else []
    if NCCL_WATCHDOG not in env and OLD_NCCL_WATCHDOG not in env:
        names.append(NCCL_WATCHDOG)
    return tuple(names)
