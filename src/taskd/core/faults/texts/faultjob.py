"""`fault-job-info`: which chips of a super pod have to be let go when a part of a job moves.

The node daemon of each healthy node that is named marks the shared devices as gone, so that memory which the
lost part had mapped is released.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from taskd.core.gojson import compact

NAME: Final = "fault-job-info"


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of the job in a super pod."""

    node: str
    super_pod: int
    super_devices: tuple[str, ...]


def fault_job(job_id: str, members: Iterable[Member], faulty: Iterable[str], stamp: float) -> str:
    """The value for one job; super pods without a faulty node are not in it. Empty where none has one."""
    lost = frozenset(faulty)
    pods: dict[int, list[Member]] = {}
    for member in members:
        pods.setdefault(member.super_pod, []).append(member)
    value = {}
    for number, listed in sorted(pods.items()):
        gone = [member for member in listed if member.node in lost]
        if gone:
            value[str(number)] = {
                "SdIds": sorted({device for member in gone for device in member.super_devices}, key=_order),
                "FaultNodes": {node: {} for node in sorted({member.node for member in gone})},
                "NodeNames": sorted({member.node for member in listed} - lost),
                "FaultTimes": int(stamp),
                "JobId": job_id,
            }
    return compact(value) if value else ""


def without(data: Mapping[str, str], job_id: str) -> dict[str, str]:
    """The data after a job is whole again, or gone."""
    return {key: text for key, text in data.items() if key != job_id}


def _order(text: str) -> tuple[int, str]:
    return (int(text) if text.isascii() and text.isdecimal() else -1), text
