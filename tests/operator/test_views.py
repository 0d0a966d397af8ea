"""What a decision hears of a pod."""

from typing import Any

import msgspec
import pytest

from taskd.kube.objects import Pod
from taskd.operator.views import see_pod

ENDED = {"name": "ascend", "state": {"terminated": {"exitCode": 143}}}
RUNS = {"name": "sidecar", "state": {"running": {}}}
GOING = {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}


def pod(meta: dict[str, Any], *containers: dict[str, Any], phase: str = "Failed") -> Pod:
    """A pod as the API server tells of it."""
    whole = {
        "metadata": {"name": "j-worker-0", "uid": "u", **meta},
        "status": {"phase": phase, "containerStatuses": containers},
    }
    return msgspec.convert(whole, Pod)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (pod(GOING, ENDED), True),
        (pod({}, ENDED), False),
        (pod(GOING, ENDED, RUNS), False),
        (pod(GOING, ENDED, phase="Running"), False),
        (pod(GOING), False),
        (pod({**GOING, "finalizers": ["example.com/keep"]}, ENDED), False),
        (pod({**GOING, "deletionGracePeriodSeconds": 0}, ENDED), False),
    ],
    ids=["ended", "not deleted", "a container runs", "phase", "lost with its node", "kept", "on its way"],
)
def test_a_deleted_pod_is_over_when_its_kubelet_has_seen_all_of_it_end(seen: Pod, *, expected: bool) -> None:
    """Only then may its name be given away: a program that still runs must never meet its successor."""
    assert expected is see_pod(seen).over
