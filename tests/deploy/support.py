"""Paths and small helpers of the tests of what is deployed."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from taskd.testing.kube import ApiError, Cluster

ROOT = Path(__file__).parents[2]
CRD = ROOT / "deploy/crd/ascendjobs.yaml"
CHART = ROOT / "deploy/helm/taskd"
BASE = ROOT / "deploy/kustomize/base"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
SAMPLE = ROOT / "examples/pytorch_multinodes_acjob_910b.yaml"

JOBS = "/apis/mindxdl.gitee.com/v1/namespaces/{}/ascendjobs"

# Served a moment after the definition is accepted: the objects, and what `kubectl explain` reads.
SERVED = ("/apis/mindxdl.gitee.com/v1/ascendjobs", "/openapi/v3/apis/mindxdl.gitee.com/v1")
NOT_YET = (404, 429)

Document = dict[str, Any]

# Ten times faster where PyYAML was built with libyaml; the definition has four thousand lines.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Missing:
    """Takes a field away instead of setting it."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


def load(text: str) -> list[Document]:
    """Read all documents of a YAML text."""
    return [document for document in yaml.load_all(text, LOADER) if document]


def sample() -> Document:
    """Return the guide's own sample as a value."""
    (job,) = load(SAMPLE.read_text("utf-8"))
    return job


def changed(job: Document, path: str, value: object) -> Document:
    """Return a copy with one field set or, for `MISSING`, taken away.

    Numbers in the path are places in lists, and ~ stands for a slash inside of a name.
    """
    result = copy.deepcopy(job)
    *parents, last = _steps(path)
    here: Any = result
    for step in parents:
        here = here[step] if isinstance(step, int) else here.setdefault(step, {})
    if value is MISSING:
        del here[last]
    else:
        here[last] = value
    return result


def _steps(path: str) -> Iterator[str | int]:
    for step in path.split("/"):
        yield int(step) if step.isdigit() else step.replace("~", "/")


def wait_until_served(cluster: Cluster) -> None:
    """Wait until AscendJobs can be read and written."""
    cluster.wait(lambda: all(_served(cluster, path) for path in SERVED), timeout_s=30)


def _served(cluster: Cluster, path: str) -> bool:
    try:
        cluster.api.get(path)
    except ApiError as error:
        if error.code in NOT_YET:
            return False
        raise
    return True
