"""Restarts: which pods come back, how often, and the guide's sentences about it, to the letter."""

from collections.abc import Iterator

import pytest

from taskd.testing.kube import Cluster
from tests.kube.operator.site import JOBS, Controller, Json, Site, until
from tests.kube.operator.town import Town, job


def uids(town: Town, name: str) -> dict[str, str]:
    """The pods of a job, by name, each with what tells it from its successor."""
    return {pod: content["metadata"]["uid"] for pod, content in town.site.pods(name).items()}


def phases(town: Town, name: str) -> dict[str, str]:
    """What the kubelets say of its pods."""
    return {pod: content["status"]["phase"] for pod, content in town.site.pods(name).items()}


def wait_restarts(town: Town, name: str, number: int) -> None:
    """Wait until the job's n-th restart has begun."""
    until(lambda: town.site.status(name).get("restarts") == number)


def wait_restart(town: Town, name: str, number: int) -> None:
    """Wait until the job runs whole again after its n-th restart."""
    until(
        lambda: town.site.status(name).get("restarts") == number and town.site.state(name) == "Running",
        say=lambda: f"{name} is {town.site.status(name)} with {phases(town, name)}",
    )


# ------------------------------------------------------------------------------- the guide's own examples


@pytest.fixture
def default(kube: Cluster, town: Town, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """The namespace `default`, whose name is in the guide's examples, with a controller of its own."""
    site = Site(kube, "default")
    log = tmp_path_factory.mktemp("default") / "controller.log"
    controller = Controller(kube.kubeconfig, "default", log, "--lease-s", "60").start()
    yield Town(site, controller, town.nodes, town.volcano)
    site.delete("test-job")
    until(lambda: kube.api.find(f"{JOBS.format('default')}/test-job") is None)
    assert 0 == controller.stop()


def test_s4_46_s4_38_the_sentence_of_a_job_whose_pod_failed(default: Town) -> None:
    """`Job default/test-job has failed because has pod failed.`."""
    default.running(job("test-job"))
    default.exit("test-job-worker-0")
    last = default.site.wait_state("test-job", "Failed")

    assert {
        "type": "Failed",
        "status": "True",
        "message": "Job default/test-job has failed because has pod failed.",
        "reason": "JobFailed",
    }.items() <= last.items()
    assert last["lastTransitionTime"] == last["lastUpdateTime"]


def test_s4_47_s4_39_s4_52_the_sentence_of_a_job_that_tries_again(default: Town) -> None:
    """`… and remain retry times is <3>.`, with the brackets, and one less each time."""
    default.running(job("test-job", labels={"fault-retry-times": "3"}))
    for number, remaining in ((1, 3), (2, 2)):
        default.exit("test-job-worker-0")
        wait_restarts(default, "test-job", number)
        (told,) = [
            condition
            for condition in default.site.status("test-job")["conditions"]
            if condition["type"] == "Restarting"
        ]
        assert "jobRestarting" == told["reason"]
        assert (
            f"Job default/test-job is unconditional retry job and remain retry times is <{remaining}>."
            == told["message"]
        )
        wait_restart(default, "test-job", number)


def test_s4_48_s4_53_the_sentence_of_a_job_that_restarted_too_often(default: Town) -> None:
    """The name alone, without namespace and full stop."""
    default.running(job("test-job", restart_policy="ExitCode", policy={"backoffLimit": 1}))
    default.exit("test-job-worker-0", 137)
    wait_restart(default, "test-job", 1)
    default.exit("test-job-worker-0", 137)
    last = default.site.wait_state("test-job", "Failed")

    assert {
        "type": "Failed",
        "status": "True",
        "message": "Job test-job has failed because it has reached the specified backoff limit",
        "reason": "JobFailed",
    }.items() <= last.items()


# ------------------------------------------------------------------------------------------- retries


def test_s4_52_retries_end_with_the_last_of_them(town: Town) -> None:
    """Each failure costs one; the failure after the last fails the job, and no pod comes back."""
    name = town.running(job("tried", labels={"fault-retry-times": "2"}))
    for number in (1, 2):
        town.exit("tried-worker-0")
        wait_restart(town, name, number)
    town.exit("tried-worker-0")
    last = town.site.wait_state(name, "Failed", "JobFailed")

    assert (
        f"Job {town.namespace}/tried has failed because pod failed and remain retry times is 0."
        == last["message"]
    )
    assert (2, 2, {"pod-failed": 2}) == tuple(
        town.site.status(name)[field] for field in ("restarts", "retries", "restartCauses")
    )
    assert ["tried-worker-0"] == list(town.site.wait_pods(name, 1))


def test_s4_28_a_retry_replaces_all_pods(town: Town) -> None:
    """Those that have not failed have lost their peer. Same names and ranks, other pods."""
    name = town.running(job("whole", workers=2, labels={"fault-retry-times": "1"}))
    before = uids(town, name)
    town.exit("whole-worker-1")
    wait_restart(town, name, 1)
    after = uids(town, name)

    assert set(before) == set(after)
    assert not set(before.values()) & set(after.values())
    for pod, content in town.site.pods(name).items():
        assert "1" == content["metadata"]["labels"]["version"], pod


def test_s4_28_with_pod_rescheduling_only_the_failed_pod_is_replaced(town: Town) -> None:
    """The others keep running: they are the very same pods afterwards."""
    name = town.running(job("single", workers=2, labels={"fault-retry-times": "1", "pod-rescheduling": "on"}))
    before = uids(town, name)
    town.exit("single-worker-1")
    wait_restart(town, name, 1)
    after = uids(town, name)

    assert {"single-worker-1"} == {pod for pod in before if before[pod] != after[pod]}


@pytest.mark.parametrize(
    ("code", "state"), [(128, "Running"), (137, "Running"), (1, "Failed"), (127, "Failed")]
)
def test_s4_28_s4_39_exit_code_tells_whether_another_try_helps(town: Town, code: int, state: str) -> None:
    """With `restartPolicy: ExitCode`: from 128 on the pod is replaced, below that it has failed."""
    name = town.running(job(f"exit-{code}", restart_policy="ExitCode"))
    assert "Never" == town.site.pod(f"{name}-worker-0")["spec"]["restartPolicy"]
    town.exit(f"{name}-worker-0", code)
    if state == "Failed":
        town.site.wait_state(name, "Failed", "JobFailed")
        return
    wait_restart(town, name, 1)
    (told,) = [c for c in town.site.status(name)["conditions"] if c["type"] == "Restarting"]
    assert ("jobRestarting", f"Job {name} is restarting because Worker replica(s) failed.", "False") == (
        told["reason"],
        told["message"],
        told["status"],
    )


def test_s4_28_a_kubelet_that_restarts_in_place_is_no_restart(town: Town) -> None:
    """With OnFailure the kubelet starts the container again; the job stays Running."""
    name = town.running(job("in-place", restart_policy="OnFailure"))
    before = uids(town, name)
    town.exit("in-place-worker-0", 1)
    until(lambda: town.site.pod("in-place-worker-0")["status"]["containerStatuses"][0]["restartCount"] == 1)

    assert "Running" == town.site.state(name)
    assert before == uids(town, name)
    assert 0 == town.site.status(name)["restarts"]


def test_s4_28_an_evicted_pod_comes_back_without_costing_a_retry(town: Town) -> None:
    """It did nothing wrong. The pod that the kubelet left behind makes room for its successor.

    It is a restart all the same, so it counts towards the limit: the next failure, with a retry left, is one
    restart too many.
    """
    name = town.running(job("evicted", labels={"fault-retry-times": "1"}))
    before = uids(town, name)
    town.nodes.evict(town.namespace, "evicted-worker-0")
    wait_restart(town, name, 1)

    assert before["evicted-worker-0"] != uids(town, name)["evicted-worker-0"]
    status = town.site.status(name)
    assert {"evicted": 1} == status["restartCauses"]
    assert "evicted-worker-0" == status["lastFault"]["pod"]
    assert (1, 0) == (status["restarts"], status.get("retries", 0))

    town.exit("evicted-worker-0")
    last = town.site.wait_state(name, "Failed", "JobFailed")
    assert "Job evicted has failed because it has reached the specified backoff limit" == last["message"]


def test_s4_28_s4_52_an_eviction_leaves_all_retries_to_failures(town: Town) -> None:
    """With a limit of its own the job has as many retries after an eviction as it had before."""
    name = town.running(job("driven", labels={"fault-retry-times": "1"}, policy={"backoffLimit": 5}))
    town.nodes.evict(town.namespace, "driven-worker-0")
    wait_restart(town, name, 1)
    town.exit("driven-worker-0")
    wait_restart(town, name, 2)

    assert ({"evicted": 1, "pod-failed": 1}, 1) == (
        town.site.status(name)["restartCauses"],
        town.site.status(name)["retries"],
    )
    town.exit("driven-worker-0")
    last = town.site.wait_state(name, "Failed", "JobFailed")
    assert last["message"].endswith("has failed because pod failed and remain retry times is 0.")


# ------------------------------------------------------------------------------------------- the limit


def lose(town: Town, pod: str) -> None:
    """Delete a pod, as somebody with kubectl would."""
    uid = town.site.pod(pod)["metadata"]["uid"]
    town.site.kube.kubectl("delete", "pod", "-n", town.namespace, pod, "--wait=false")
    town.wait_gone(pod, uid)


def test_s4_53_the_limit_counts_restarts_of_every_cause(town: Town) -> None:
    """Two are allowed: a deleted pod and an evicted one are two, and the third is too many."""
    name = town.running(job("limited", policy={"backoffLimit": 2}))
    lose(town, "limited-worker-0")
    wait_restart(town, name, 1)
    town.nodes.evict(town.namespace, "limited-master-0")
    wait_restart(town, name, 2)
    lose(town, "limited-worker-0")
    last = town.site.wait_state(name, "Failed")

    assert "Job limited has failed because it has reached the specified backoff limit" == last["message"]
    assert {"pod-lost": 1, "evicted": 1} == town.site.status(name)["restartCauses"]
    assert town.site.status(name)["completionTime"]


@pytest.mark.parametrize("limit", [None, 0, -1])
def test_s4_53_no_limit_is_no_limit(town: Town, limit: int | None) -> None:
    """Not set, zero and less than zero allow any number of restarts."""
    policy: Json = {} if limit is None else {"backoffLimit": limit}
    name = town.running(job(f"free-{limit}".replace("--", "-").lower(), policy=policy))
    for number in (1, 2, 3):
        lose(town, f"{name}-worker-0")
        wait_restart(town, name, number)


def test_s4_53_one_accident_is_one_restart(town: Town) -> None:
    """All pods lost at once cost one of the limit, not one each."""
    name = town.running(job("together", workers=3, policy={"backoffLimit": 1}))
    before = uids(town, name)
    # kubectl deletes one after the other; on a busy machine the job would run whole again in between.
    with town.controller.frozen():
        town.site.kube.kubectl(
            "delete", "pod", "-n", town.namespace, "-l", f"job-name={name}", "--wait=false"
        )
        for pod, uid in before.items():
            town.wait_gone(pod, uid)
    wait_restart(town, name, 1)

    assert {"pod-lost": 1} == town.site.status(name)["restartCauses"]
