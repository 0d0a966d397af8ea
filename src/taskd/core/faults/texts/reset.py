"""`reset-config-<job>`: what the agents in a job's containers are to do with their processes.

The reference writes the whole of `data` at each change, and so loses `restartType` and `GracefulExit`, which
others have set. Here each operation is a function from what stands there to what shall stand there, and what
it is not about stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from taskd.core.faults.reading import (
    INT32,
    Malformed,
    as_int,
    as_list,
    as_object,
    as_text,
    decode,
    reader,
    shown,
)
from taskd.core.gojson import check_code, compact

RESET_JSON: Final = "reset.json"
CHECK_CODE: Final = "checkCode"
RESTART_TYPE: Final = "restartType"
HOT_RESET: Final = frozenset({"reset", "restart"})
"""Policies of the device plugin's hot reset: while one is in the list nobody else writes."""


class RestartType(StrEnum):
    """Why processes are restarted."""

    POD = "podReschedule"
    HOT = "hotReset"


class RankStatus(StrEnum):
    """What is the matter with a rank: `fault` is the plane's word, the others are the device plugin's."""

    FAULT = "fault"
    UNRECOVERED = "unrecovered"
    RECOVERED = "recovered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ResetRank:
    """One entry of the list."""

    rank: int
    logic_id: int = 0
    status: RankStatus = RankStatus.FAULT
    policy: str = ""
    initial_policy: str = ""
    codes: tuple[int, ...] | None = None
    codes_hex: str = ""

    def payload(self) -> dict[str, Any]:
        """In the order of the fields."""
        return {
            "RankId": self.rank,
            "LogicId": self.logic_id,
            "Status": self.status.value,
            "Policy": self.policy,
            "InitialPolicy": self.initial_policy,
            "ErrorCode": None if self.codes is None else list(self.codes),
            "ErrorCodeHex": self.codes_hex,
        }


@dataclass(frozen=True, slots=True)
class Reset:
    """The content of `reset.json`, and the key beside it."""

    ranks: tuple[ResetRank, ...] = ()
    update_time: int = 0
    retry_time: int = 0
    flushing: bool = False
    graceful_exit: int = 0
    restart_fault_process: bool = False
    restart_type: RestartType | None = None

    @property
    def hot_reset(self) -> bool:
        """Whether the device plugin is resetting chips of the job."""
        return any(
            entry.policy in HOT_RESET and entry.status is not RankStatus.FAILED for entry in self.ranks
        )

    def text(self) -> str:
        """`reset.json`."""
        return compact(
            {
                "RankList": [entry.payload() for entry in self.ranks],
                "UpdateTime": self.update_time,
                "RetryTime": self.retry_time,
                "FaultFlushing": self.flushing,
                "GracefulExit": self.graceful_exit,
                "RestartFaultProcess": self.restart_fault_process,
            }
        )

    def data(self) -> dict[str, str]:
        """The keys of the ConfigMap."""
        text = self.text()
        data = {RESET_JSON: text, CHECK_CODE: check_code(text)}
        if self.restart_type is not None:
            data[RESTART_TYPE] = self.restart_type.value
        return data


@reader
def read_reset(data: Mapping[str, str]) -> Reset:
    """What stands in the ConfigMap; nothing at all is an empty one. Its check code is not asked for.

    Users write the first one by hand.
    """
    kind = data.get(RESTART_TYPE, "")
    restart_type = RestartType(kind) if kind in set(RestartType) else None
    text = data.get(RESET_JSON)
    if not text:
        return Reset(restart_type=restart_type)
    content = as_object(decode(text, RESET_JSON), RESET_JSON)
    return Reset(
        tuple(_rank(item) for item in as_list(content.get("RankList"), "RankList")),
        as_int(content.get("UpdateTime", 0), "UpdateTime"),
        as_int(content.get("RetryTime", 0), "RetryTime"),
        _flag(content.get("FaultFlushing", False), "FaultFlushing"),
        as_int(content.get("GracefulExit", 0), "GracefulExit"),
        _flag(content.get("RestartFaultProcess", False), "RestartFaultProcess"),
        restart_type,
    )


def _rank(item: object) -> ResetRank:
    entry = as_object(item, "an entry of RankList")
    status = as_text(entry.get("Status", ""), "Status")
    if status not in set(RankStatus):
        raise Malformed(f"Status is {shown(status)}, not one of {', '.join(RankStatus)}")
    codes = entry.get("ErrorCode")
    return ResetRank(
        as_int(entry.get("RankId"), "RankId"),
        as_int(entry.get("LogicId", 0), "LogicId", INT32),
        RankStatus(status),
        as_text(entry.get("Policy") or "", "Policy"),
        as_text(entry.get("InitialPolicy") or "", "InitialPolicy"),
        None if codes is None else tuple(as_int(code, "ErrorCode") for code in as_list(codes, "ErrorCode")),
        as_text(entry.get("ErrorCodeHex") or "", "ErrorCodeHex"),
    )


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise Malformed(f"{what} is {shown(value)}, not true or false")
    return value


# ---------------------------------------------------------------------------------------------- operations


def clear(now: Reset, stamp: float) -> Reset:
    """Nothing is the matter any more."""
    return replace(now, ranks=(), flushing=False, restart_fault_process=False, update_time=int(stamp))


def flush(now: Reset, stamp: float) -> Reset:
    """Faults are being gathered: agents start no process until this is over."""
    return replace(now, ranks=(), flushing=True, restart_fault_process=False, update_time=int(stamp))


def name_faults(
    now: Reset, ranks: Iterable[int], stamp: float, *, in_place: bool, per_node: int = 0
) -> Reset:
    """These ranks have a fault: their agents leave, or restart just them where they are.

    `per_node` gives each its number on its node, as device plugins count.
    """
    listed = tuple(ResetRank(rank, rank % per_node if per_node else 0) for rank in sorted(set(ranks)))
    return replace(now, ranks=listed, flushing=False, restart_fault_process=in_place, update_time=int(stamp))


def restart_all(now: Reset, stamp: float) -> Reset:
    """All agents restart all their processes."""
    return replace(now, retry_time=now.retry_time + 1, restart_type=RestartType.POD, update_time=int(stamp))


def exit_gracefully(now: Reset, stamp: float, *, leave: bool) -> Reset:
    """All processes stop, or may start again."""
    return replace(now, graceful_exit=int(leave), update_time=int(stamp))
