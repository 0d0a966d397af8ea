"""Codes that rules speak of by name, and the level of each public code.

Codes are opaque: nothing is derived from their digits. The table of public codes can be replaced by
configuration; what is here are the codes that the reference documents, and ours for NVIDIA's devices, whose
XID numbers enter through the same door (`NVXID` and four digits make the nine characters of a code).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from taskd.core.faults.levels import Level

UCE: Final = "80E01801"
AIC: Final = "80C98009"
AIV: Final = "80CB8009"
ACCOMPANY: Final = frozenset({AIC, AIV})
"""Errors of a core that come along with a memory error and mean nothing of their own then."""
HCCL_RETRY: Final = "8C1F860B"
RETRYABLE: Final = frozenset({UCE, HCCL_RETRY})
LINK_DOWN: Final = "81078603"
SWITCH_LINK_DOWN: Final = "[0x08520003,na,L2,na]"
LINK_DOWNS: Final = frozenset({LINK_DOWN, SWITCH_LINK_DOWN})
UBOE_PORT_DOWN: Final = "81078607"
UBOE_PRE_SEPARATE: Final = "110001024"
UBOE_SUB_HEALTH: Final = "110000002"
PARAMETER_PLANE: Final = frozenset({LINK_DOWN, UBOE_PORT_DOWN, UBOE_PRE_SEPARATE, UBOE_SUB_HEALTH})
"""Faults of the network between chips: they do not make an idle chip unhealthy beforehand."""
DEVICE_CQE: Final = "8C1F8608"
HOST_CQE: Final = "4C1F8608"
CQE: Final = frozenset({DEVICE_CQE, HOST_CQE})
STRESS: Final = frozenset({"80818C05", "80818C06"})

CODE_LENGTH: Final = 9
RESOURCES: Final = frozenset(
    {"CCAE", "fd-online", "pingmesh", "Netmind", "dpcStorage", "dtfsStorage", "nvidia"}
)
"""Who may send public faults; `nvidia` is ours."""

_PUBLIC: Final[Mapping[str, Level]] = {
    "100001011": Level.NOT_HANDLE,
    "200001002": Level.NOT_HANDLE,
    "200001010": Level.NOT_HANDLE,
    "200001011": Level.NOT_HANDLE,
    "200001012": Level.NOT_HANDLE,
    "020000002": Level.SUB_HEALTH,
    UBOE_SUB_HEALTH: Level.SUB_HEALTH,
    "110001010": Level.SUB_HEALTH,
    # The file systems of storage nodes: a training that cannot reach them stands, but its chips are good.
    "110001020": Level.SUB_HEALTH,
    "110001021": Level.SUB_HEALTH,
    "110001022": Level.SUB_HEALTH,
    "110001023": Level.SUB_HEALTH,
    UBOE_PRE_SEPARATE: Level.PRE_SEPARATE,
    "020001002": Level.SEPARATE,
    "220001001": Level.SEPARATE,
}

_XIDS: Final[Mapping[Level, tuple[int, ...]]] = {
    # 13, 31, 43, 45: the program's own doing, or the consequence of another error. 63: a row was remapped.
    Level.NOT_HANDLE: (13, 31, 43, 45, 63),
    # 92: many corrected ECC errors. 94: an uncorrectable one that was contained; the process that met it ends
    # by itself, and the device wants a reset when it is idle.
    Level.SUB_HEALTH: (92,),
    Level.PRE_SEPARATE: (94,),
    # Double-bit ECC, failed remapping, NVLink, lost from the bus, GSP, uncontained ECC, a reset is asked for.
    Level.SEPARATE: (48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 154),
}


def split_codes(text: str) -> tuple[str, ...]:
    """The codes of a list with commas; commas inside brackets belong to the code of a switch."""
    found, depth, start = [], 0, 0
    for index, sign in enumerate(text):
        if sign == "[":
            depth += 1
        elif sign == "]":
            depth = max(0, depth - 1)
        elif sign == "," and depth == 0:
            found.append(text[start:index].strip())
            start = index + 1
    found.append(text[start:].strip())
    return tuple(dict.fromkeys(code for code in found if code))


def xid_code(xid: int) -> str:
    """The public code of one of NVIDIA's XID numbers."""
    return f"NVXID{xid:04d}"


@dataclass(frozen=True, slots=True)
class PublicTable:
    """Which public codes and senders are known, and how severe each code is."""

    levels: Mapping[str, Level] = field(
        default_factory=lambda: {**_PUBLIC, **{xid_code(x): level for level, xs in _XIDS.items() for x in xs}}
    )
    resources: frozenset[str] = RESOURCES
