"""Jobs with mistakes, submitted to the installed controller beside one that is right."""

import json
from pathlib import Path

import pytest

from taskd.testing.kube import Cluster, Nodes
from tests.deploy.support import changed, sample
from tests.deploy.test_bad_yaml import LEFT_TO_THE_CONTROLLER
from tests.kube.operator.site import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Where a job may do without what is asked of most: it runs.
HARMLESS = {
    "a port of another name",
    "a variable twice",
    "a negative backoffLimit",
    "an unknown switch affinity",
    "an unknown scheduling policy",
}
# The field that is named, where it is not the one that was spoilt.
NAMED = {
    "no spec": "spec.replicaSpecs",
    "no leader": "spec.replicaSpecs",
    "an unknown role": "spec.replicaSpecs.Chief",
    "no pods": "spec.runPolicy.schedulingPolicy.minAvailable",
    "an empty role": "spec.replicaSpecs.Worker.template.spec.containers",
    "no container called ascend": "spec.replicaSpecs.Master.template.spec.containers",
    "another resource than the variable names": "containers[ascend].env[ASCEND_VISIBLE_DEVICES]",
}


def field_of(kind: str, path: str) -> str:
    """Return the field as the controller calls it."""
    if kind in NAMED:
        return NAMED[kind]
    first, *rest = path.split("/")
    if first == "metadata":
        return f"metadata.{rest[0]}[{rest[1].replace('~', '/')}]"
    steps = [step for step in path.split("/") if step not in ("limits", "huawei.com~Ascend910")]
    return ".".join(steps).replace("containers.0", "containers[ascend]")


def test_s4_45_s4_56_mistakes_are_told_in_the_job_and_harm_nobody(installed: Cluster, log: Path) -> None:
    """Thirty kinds at once: each is told with its field, none starts a pod, and a good job runs on."""
    nodes = Nodes(installed)
    nodes.add(16, labels={"example-key": "example-value"})
    kinds = list(LEFT_TO_THE_CONTROLLER)
    with installed.namespace() as namespace:
        site = Site(installed, namespace)
        site.submit(changed(sample(), "metadata/name", "right"))
        site.wait_state("right", "Running", limit_s=40)
        pods = {name: pod["metadata"]["uid"] for name, pod in site.pods("right").items()}

        for number, (path, value) in enumerate(LEFT_TO_THE_CONTROLLER.values()):
            job = changed(changed(sample(), path, value), "metadata/name", f"wrong-{number}")
            installed.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(job))

        for number, (kind, (path, _)) in enumerate(LEFT_TO_THE_CONTROLLER.items()):
            name = f"wrong-{number}"
            if kind in HARMLESS:
                site.wait_state(name, "Running", limit_s=40)
                continue
            told = site.wait_state(name, "Failed", "JobValidFailed", limit_s=40)
            assert field_of(kind, path) in told["message"], kind
            assert not site.pods(name), kind
        assert pods == {name: pod["metadata"]["uid"] for name, pod in site.pods("right").items()}
        assert "Running" == site.state("right")

        # One that is mended goes on as if nothing had been.
        mended = f"wrong-{kinds.index('an unknown framework')}"
        site.patch(mended, {"metadata": {"labels": {"framework": "pytorch"}}})
        site.wait_state(mended, "Running", limit_s=40)
    assert "look_broke" not in log.read_text()
