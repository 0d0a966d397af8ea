"""The PodGroup of a job, and the amounts in it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.acjob import names
from taskd.core.acjob.job import Slot
from taskd.core.acjob.podgroups import min_resources, pod_group, pod_request
from taskd.core.acjob.quantities import Form, Quantity, QuantityError, parse
from tests.core.acjob.samples import CARDS, make_job, make_template


def with_requests(container: dict[str, Any] | None = None, **amounts: object) -> dict[str, Any]:
    return make_template(0, container={"resources": {"requests": amounts}, **(container or {})})


def test_the_group_shows_what_the_job_says() -> None:
    """All labels and annotations, but not the copy that kubectl keeps of the whole job."""
    job = make_job(
        labels={"fault-scheduling": "grace", "tor-affinity": "normal-schema"},
        annotations={names.LAST_APPLIED: "{}", "huawei.com/schedule_policy": "chip8-node8"},
    )
    group = pod_group(job)

    assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert group["metadata"]["name"] == "job-u-1"
    assert group["metadata"]["labels"] == {
        "framework": "pytorch",
        "fault-scheduling": "grace",
        "tor-affinity": "normal-schema",
    }
    assert group["metadata"]["annotations"] == {"huawei.com/schedule_policy": "chip8-node8"}
    assert group["metadata"]["ownerReferences"][0]["uid"] == "u-1"


@pytest.mark.parametrize("strategy", ["recover", ""])
def test_the_control_plane_learns_that_processes_may_recover(strategy: str) -> None:
    """From a label on the group, as soon as the annotation is there; a pause of its own stays."""
    job = make_job(annotations={names.RECOVER_STRATEGY: strategy})

    assert pod_group(job)["metadata"]["labels"]["process-recover-enable"] == "on"
    assert pod_group(job, paused=True)["metadata"]["labels"]["process-recover-enable"] == "pause"
    assert "process-recover-enable" not in pod_group(make_job(), paused=True)["metadata"]["labels"]


def test_all_pods_start_together_unless_the_job_says_fewer() -> None:
    """As many as there are, or minAvailable; and of each type its count."""
    spec = pod_group(make_job(workers=3))["spec"]
    fewer = pod_group(make_job(workers=3, policy={"schedulingPolicy": {"minAvailable": 2}}))["spec"]

    assert (spec["minMember"], spec["minTaskMember"]) == (4, {"master": 1, "worker": 3})
    assert (fewer["minMember"], fewer["minTaskMember"]) == (2, {"master": 1, "worker": 3})
    assert spec["minResources"] == {CARDS: "32"}
    assert fewer["minResources"] == {CARDS: "16"}


def test_a_group_does_not_wait_for_places_that_are_done_and_whose_pods_are_gone() -> None:
    """Of a job that says fewer, no more than are left."""
    gone = {Slot("Worker", 0), Slot("Worker", 2)}
    spec = pod_group(make_job(workers=3), gone=gone)["spec"]
    fewer = pod_group(make_job(workers=3, policy={"schedulingPolicy": {"minAvailable": 1}}), gone=gone)[
        "spec"
    ]

    assert (spec["minMember"], spec["minTaskMember"]) == (2, {"master": 1, "worker": 1})
    assert spec["minResources"] == {CARDS: "16"}
    assert fewer["minMember"] == 1


def test_a_group_without_a_queue_is_in_the_default_one() -> None:
    """Queue, priority and resources are the job's where it gives them."""
    given_ = {"queue": "big", "priorityClass": "high", "minResources": {"cpu": 4}}
    spec = pod_group(make_job(policy={"schedulingPolicy": given_}))["spec"]

    assert pod_group(make_job())["spec"]["queue"] == "default"
    assert "priorityClassName" not in pod_group(make_job())["spec"]
    assert (spec["queue"], spec["priorityClassName"], spec["minResources"]) == ("big", "high", {"cpu": 4})


def test_the_leader_is_counted_first() -> None:
    """So the sum over fewer pods than there are is always the same one."""
    job = make_job(
        workers=4, leader=with_requests(cpu="500m"), worker=with_requests(cpu="250m", memory="1Gi")
    )

    assert min_resources(job, 0) == {}
    assert min_resources(job, 1) == {"cpu": "500m"}
    assert min_resources(job, 3) == {"cpu": "1", "memory": "2Gi"}
    assert min_resources(job, 99) == {"cpu": "1500m", "memory": "4Gi"}


def test_a_pod_occupies_what_it_needs_at_its_largest_moment() -> None:
    """Init containers run before the others, one by one; sidecars stay; a limit is a request too."""
    template = with_requests(cpu="1", memory="1Gi")
    template["spec"] |= {
        "initContainers": [
            {"name": "first", "resources": {"requests": {"cpu": "3"}}},
            {
                "name": "side",
                "restartPolicy": "Always",
                "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}},
            },
            {"name": "second", "resources": {"requests": {"memory": "4Gi"}}},
        ],
        "overhead": {"cpu": "100m"},
    }
    template["spec"]["containers"].append({"name": "logs", "resources": {"limits": {"memory": "1Gi"}}})

    occupied = {name: str(amount) for name, amount in pod_request(template).items()}

    assert occupied == {"cpu": "3100m", "memory": "4352Mi"}


def test_what_is_no_amount_is_named() -> None:
    """In words that help."""
    with pytest.raises(QuantityError, match="'lots' is not a quantity"):
        pod_group(make_job(worker=with_requests(memory="lots")))


# ---------------------------------------------------------------------------------------- quantities


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (8, "8"),
        ("0", "0"),
        ("500m", "500m"),
        ("1500m", "1500m"),
        ("1000m", "1"),
        (0.5, "500m"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("1000Ki", "1000Ki"),
        ("1000000", "1M"),
        ("8000", "8k"),
        ("1e3", "1e3"),
        ("12e6", "12e6"),
        ("1E", "1E"),
        ("100n", "100n"),
        ("0.1n", "1n"),
        ("-1500m", "-1500m"),
        ("+2", "2"),
        (".5", "500m"),
        ("5.", "5"),
        ("64Gi", "64Gi"),
    ],
)
def test_an_amount_is_written_as_kubernetes_would(text: object, canonical: str) -> None:
    """Whole, with the largest suffix that fits."""
    assert canonical == str(parse(text))


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1gi", "1Mib", "--1", "1e", "e3", None, True, "1KI", []])
def test_other_texts_are_refused(text: object) -> None:
    """Instead of counting as nothing."""
    with pytest.raises(QuantityError):
        parse(text)


AMOUNTS = st.builds(
    lambda number, suffix: f"{number}{suffix}",
    st.integers(0, 10**6),
    st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi", "u"]),
)


@given(st.lists(AMOUNTS, min_size=1, max_size=6))
def test_adding_is_exact_and_writing_loses_nothing(texts: list[str]) -> None:
    """The sum, written and read again, is the sum of the parts."""
    amounts = [parse(text) for text in texts]
    total = sum(amounts[1:], amounts[0])

    again = parse(str(total))

    assert again.value == sum((amount.value for amount in amounts), Fraction(0))


def test_the_first_amount_decides_how_the_sum_is_written() -> None:
    """Unless it is nothing."""
    assert str(parse("1Gi") + parse("1024")) == "1048577Ki"
    assert str(parse("1000") + parse("1Ki")) == "2024"
    assert str(Quantity(Fraction(0), Form.DECIMAL) + parse("1Gi")) == "1Gi"
