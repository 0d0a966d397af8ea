"""Where the plane finds and puts its ConfigMaps; the defaults are the reference's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from taskd.core.acjob import names as acjob

MANAGER: Final = "taskd-plane"
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": MANAGER}
"""On everything that the plane makes, so that it removes only what is its own."""
CONSUMER_CIM: Final = "mx-consumer-cim=true"
CONSUMER_VOLCANO: Final = {"mx-consumer-volcano": "true"}
FAULT_TYPE: Final = "fault-type"
OURS: Final = f"{acjob.OPERATOR_NAME}={acjob.CONTROLLER}"


@dataclass(frozen=True, slots=True)
class PlaneNames:
    """The namespaces."""

    devices: str = "kube-system"
    """Device plugins write there."""
    components: str = "mindx-dl"
    """Node daemons write there, and schedulers read."""
    shared: str = "cluster-system"
    """Configuration, and what outlives a process."""
    jobs: str | None = None
    """Only jobs of this namespace; None for all."""
    public: str | None = None
    """Where public faults may be reported by ConfigMap; None for anywhere."""
