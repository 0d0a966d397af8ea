"""What kind of trouble an error in a step is: what must be repaired before the step is tried again.

The kind of an exception says little (torch and torch_npu raise RuntimeError for nearly everything), so the
text decides, by the same substrings that Ascend's own recovery goes by, in the same order. A text is never
used to find out who is to blame.

- ``uce``: a device's memory lost bits. The rank's tensors are not to be believed; it receives them anew.
- ``network``: a collective failed and memory is whole. The groups are made anew.
- ``step``: anything else. It may pass; the step is tried again as it is.
"""

import re
from enum import StrEnum

# How long the slowest control plane may take to say what becomes of a fault. A ClusterD that waits for a
# device which does not come back was seen to take 26.03 s from the stop to its question, and up to 0.7 s
# before that; one under load takes longer. A rank whose step failed waits longer than this, or it would leave
# before it is told.
DECISION_S = 40.0


class TroubleKind(StrEnum):
    """What is wrong with a rank whose step failed."""

    UCE = "uce"
    NETWORK = "network"
    STEP = "step"


# What torch_npu raises, and the codes of its device runtime for the same.
MEMORY_TEXTS = ("UCE ERROR", "HBM MULTI BIT ECC")
MEMORY_CODES = re.compile(r"\b(507053|507054)\b")
# FORCE STOP is what healthy ranks see when a device was stopped under them.
NETWORK_TEXTS = (
    "FORCE STOP",
    "HCCL OP RETRY FAILED",
    "SUSPECT REMOTE ERROR",
    "UB LINK ERROR",
    "HCCS LINK ERROR",
)
NETWORK_CODES = re.compile(r"\b(507057|507904)\b")
# What CUDA says of an uncorrectable memory error, and what collectives of gloo and NCCL fail with.
CUDA_MEMORY_TEXTS = ("uncorrectable ecc error", "hardware memory error")
COLLECTIVE_TEXTS = ("gloo", "nccl error", "nccl communicator", "ncclremoteerror", "connection closed by peer")
COLLECTIVE_TYPES = frozenset(
    {
        *("DistError", "DistBackendError", "DistNetworkError", "DistStoreError"),
        *("VoteInterrupted", "VoteTimeout", "VoterGone"),  # ours, where ranks share memory
    }
)
MEMORY_TYPES = frozenset({"DeviceMemoryError"})


def classify(type_name: str, text: str) -> TroubleKind:
    """Tell the kind of an error from the name of its type and its text."""
    if type_name in MEMORY_TYPES or any(each in text for each in MEMORY_TEXTS):
        return TroubleKind.UCE
    if any(each in text for each in NETWORK_TEXTS):
        return TroubleKind.NETWORK
    if MEMORY_CODES.search(text):
        return TroubleKind.UCE
    if NETWORK_CODES.search(text):
        return TroubleKind.NETWORK
    lower = text.lower()
    if any(each in lower for each in CUDA_MEMORY_TEXTS):
        return TroubleKind.UCE
    if type_name in COLLECTIVE_TYPES or any(each in lower for each in COLLECTIVE_TEXTS):
        return TroubleKind.NETWORK
    return TroubleKind.STEP
