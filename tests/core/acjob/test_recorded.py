"""Our objects against those that the reference operator made, field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.core.acjob import job as jobs
from taskd.core.acjob.environment import Addresses
from taskd.core.acjob.podgroups import pod_group
from taskd.core.acjob.pods import PodMaker
from taskd.core.acjob.services import leader_port, leader_service
from tests.core.acjob.differences import DIFFERENCES

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs" / "ascendjob-differences.md"
CASES = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / "recorded").glob("*.json"))}

# What the API server itself fills in when an object is stored; nobody's decision.
FILLED_IN = {
    r"Services/[^/]+/spec/sessionAffinity": "None",
    r"Services/[^/]+/spec/ipFamilies\[0\]": "IPv4",
    r"Services/[^/]+/spec/ipFamilyPolicy": "SingleStack",
    r"Services/[^/]+/spec/internalTrafficPolicy": "Cluster",
    r"Pods/[^/]+/spec/terminationGracePeriodSeconds": 30,
    r"Pods/[^/]+/spec/dnsPolicy": "ClusterFirst",
    r"Pods/[^/]+/spec/securityContext": {},
    r"Pods/[^/]+/spec/priority": 0,
    r"Pods/[^/]+/spec/enableServiceLinks": True,
    r"Pods/[^/]+/spec/preemptionPolicy": "PreemptLowerPriority",
    r"Pods/[^/]+/spec/tolerations\[\d\]/operator": "Exists",
    r"Pods/[^/]+/spec/tolerations\[\d\]/effect": "NoExecute",
    r"Pods/[^/]+/spec/tolerations\[\d\]/tolerationSeconds": 300,
    r"Pods/[^/]+/spec/tolerations\[0\]/key": "node.kubernetes.io/not-ready",
    r"Pods/[^/]+/spec/tolerations\[1\]/key": "node.kubernetes.io/unreachable",
    r"Pods/[^/]+/spec/containers\[ascend\]/terminationMessagePath": "/dev/termination-log",
    r"Pods/[^/]+/spec/containers\[ascend\]/terminationMessagePolicy": "File",
    r"Pods/[^/]+/spec/containers\[ascend\]/ports\[[^]]+\]/protocol": "TCP",
    r"Pods/[^/]+/spec/containers\[ascend\]/env\[[^]]+\]/valueFrom/fieldRef/apiVersion": "v1",
    r"Pods/[^/]+/spec/containers\[ascend\]/resources": {},
    r"Pods/[^/]+/spec/volumes\[[^]]+\]/hostPath/type": "",
}


def fields(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every field by its path; entries of a list by their name where they have one."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from fields(inner, f"{path}/{key.replace('/', '~')}")
    elif isinstance(value, list) and value:
        counts: dict[str, int] = {}
        for index, inner in enumerate(value):
            name = str(inner.get("name", index)) if isinstance(inner, dict) else str(index)
            counts[name] = counts.get(name, 0) + 1
            yield from fields(inner, f"{path}[{name}]")
        for name, count in counts.items():
            if count > 1:
                yield f"{path}[{name}]/times", count
    else:
        # An amount may be stored as a number or as a text.
        yield path, str(value) if "/resources/" in path else value


def flatten(objects: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, listed in objects.items():
        found[f"{kind}/names"] = sorted(each["metadata"]["name"] for each in listed)
        for each in listed:
            content = {key: part for key, part in each.items() if key not in {"apiVersion", "kind"}}
            found.update(fields(content, f"{kind}/{each['metadata']['name']}"))
    return found


def build(case: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    job = jobs.read(case["input"])
    maker = PodMaker(job, Addresses("<leader-service-ip>", leader_port(job)), gang=True)
    service = leader_service(job)
    made = {
        "PodGroups": [pod_group(job)],
        "Services": [] if service is None else [service],
        "Pods": [maker.pod(slot, 0) for slot in job.slots()],
    }
    objects: dict[str, list[dict[str, Any]]] = json.loads(json.dumps(made))
    for listed in objects.values():
        for each in listed:
            (owner,) = each["metadata"]["ownerReferences"]
            # The recorded objects have lost their uids; ours must be the job's.
            assert owner.pop("uid") == "<job-uid>"
    return objects


def differences(case: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    theirs, ours = flatten(case["objects"]), flatten(build(case))
    return {
        path: (theirs.get(path), ours.get(path))
        for path in sorted({*theirs, *ours})
        if theirs.get(path) != ours.get(path) and not _filled_in(path, theirs, ours)
    }


def _filled_in(path: str, theirs: dict[str, Any], ours: dict[str, Any]) -> bool:
    return path not in ours and any(
        re.fullmatch(pattern, path) and theirs[path] == value for pattern, value in FILLED_IN.items()
    )


def explanations(case: str, path: str) -> list[str]:
    return [
        each.id
        for each in DIFFERENCES
        if each.path and re.fullmatch(each.case, case) and re.fullmatch(each.path, path)
    ]


@pytest.mark.parametrize("case", CASES)
def test_every_field_is_the_reference_s_or_differs_for_a_reason(case: str) -> None:
    """PodGroup, Service and pods of each recorded case."""
    unexplained = {
        path: values
        for path, values in differences(CASES[case]).items()
        if len(explanations(case, path)) != 1
    }

    assert {} == unexplained


def test_no_reason_is_given_for_what_does_not_differ() -> None:
    """Each row about the recorded cases shows in one of them."""
    seen = {
        found
        for name, case in CASES.items()
        for path in differences(case)
        for found in explanations(name, path)
    }

    assert {each.id for each in DIFFERENCES if each.path} == seen


def test_a_field_that_changes_is_noticed() -> None:
    """The comparison itself: a wrong value, a missing field and a new field each show."""
    case = json.loads(json.dumps(CASES["pytorch-single"]))
    pod = case["objects"]["Pods"][0]
    pod["metadata"]["labels"]["version"] = "1"
    pod["spec"]["containers"][0]["image"] = "other"
    pod["spec"]["hostPID"] = True
    del pod["metadata"]["annotations"]["volcano.sh/task-spec"]

    new = set(differences(case)) - set(differences(CASES["pytorch-single"]))

    assert new == {
        "Pods/single-master-0/metadata/labels/version",
        "Pods/single-master-0/spec/containers[ascend]/image",
        "Pods/single-master-0/spec/hostPID",
        "Pods/single-master-0/metadata/annotations/volcano.sh~task-spec",
    }


def test_the_other_rows_name_a_test_that_exists() -> None:
    """A difference that no recorded case shows is shown by a test of ours."""
    defined = set(re.findall(r"^def (test_\w+)", _all_tests(), re.MULTILINE))

    assert all(bool(each.path) != bool(each.test) for each in DIFFERENCES)
    assert {each.test for each in DIFFERENCES if each.test} <= defined


def _all_tests() -> str:
    return "\n".join(path.read_text() for path in sorted(HERE.glob("test_*.py")))


def test_the_documentation_has_the_same_table() -> None:
    """docs/ascendjob-differences.md and the table that the tests use say the same."""
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]

    assert [
        f"| `{each.id}` | {each.reference} | {each.ours} | {each.reason} |" for each in DIFFERENCES
    ] == rows
