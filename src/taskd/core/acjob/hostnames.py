"""The names under which the pods of a job find each other in DNS, whatever their addresses are."""

from __future__ import annotations

import re
from typing import Final

from taskd.core.acjob import names, standbys
from taskd.core.acjob.job import Job, Json, mapping
from taskd.core.acjob.volumes import left_alone

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAMED_BY: Final = ("hostname", "subdomain", "hostNetwork", "setHostnameAsFQDN")
"""Fields by which a template settles the host name itself. The last one would make the full name the host
name, which the kernel cuts at 64 characters and the kubelet therefore refuses."""


def are_given(job: Job, spec: Json) -> bool:
    """Whether pods of that template get a host name from us."""
    return not left_alone(job) and not any(spec.get(field) for field in _NAMED_BY)


def is_label(name: str) -> bool:
    """Whether a pod's name can be a host name."""
    return _DNS_LABEL.fullmatch(name) is not None


def of_all_pods(job: Job) -> list[str]:
    """The host names of all pods that compute or lead, in the order of their ranks; none if one has none.

    Those that are kept ready, or were, stand behind them.
    """
    if not all(are_given(job, mapping(each.template.get("spec"))) for each in job.replicas):
        return []
    found = [*(job.pod_name(slot) for slot in job.slots()), *standbys.all_names(job)]
    return [f"{name}.{names.PODS_SERVICE}" for name in found] if all(map(is_label, found)) else []
