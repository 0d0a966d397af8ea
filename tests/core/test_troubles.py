"""The kind of an error decides what is repaired before a step is tried again."""

import pytest

from taskd.core.troubles import TroubleKind, classify


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("UCE ERROR. Error code is 507053", TroubleKind.UCE),
        ("HBM MULTI BIT ECC ERROR, time us = 1234", TroubleKind.UCE),
        ("npuSynchronizeDevice failed, error code 507054", TroubleKind.UCE),
        ("CUDA error: uncorrectable ECC error encountered", TroubleKind.UCE),
        ("FORCE STOP", TroubleKind.NETWORK),
        ("HCCL OP RETRY FAILED", TroubleKind.NETWORK),
        ("SUSPECT REMOTE ERROR", TroubleKind.NETWORK),
        ("UB LINK ERROR", TroubleKind.NETWORK),
        ("HCCS LINK ERROR", TroubleKind.NETWORK),
        ("hccl failed with 507904.", TroubleKind.NETWORK),
        ("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer", TroubleKind.NETWORK),
        ("NCCL error in: ProcessGroupNCCL.cpp:1275, remote process exited", TroubleKind.NETWORK),
        ("The size of tensor a (5070531) must match", TroubleKind.STEP),
        ("division by zero", TroubleKind.STEP),
        ("", TroubleKind.STEP),
    ],
)
def test_by_its_text(text: str, kind: TroubleKind) -> None:
    """The same substrings as Ascend's own recovery, and those of CUDA, gloo and NCCL."""
    assert kind == classify("RuntimeError", text)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("DeviceMemoryError", TroubleKind.UCE),
        ("DistBackendError", TroubleKind.NETWORK),
        ("DistNetworkError", TroubleKind.NETWORK),
        ("ValueError", TroubleKind.STEP),
    ],
)
def test_by_its_type(name: str, kind: TroubleKind) -> None:
    """Where the type says it, the text does not matter."""
    assert kind == classify(name, "something")


def test_memory_goes_before_the_network() -> None:
    """A rank whose collective failed because of its memory needs new tensors."""
    assert TroubleKind.UCE == classify("DistBackendError", "HCCL failed: UCE ERROR")
