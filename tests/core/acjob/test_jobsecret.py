"""Which jobs and pods are given certificates, and what the pods see of them."""

from __future__ import annotations

from typing import Any

import pytest

from taskd.core.acjob import names
from taskd.core.acjob.job import Job, Slot
from taskd.core.acjob.jobsecret import identity, job_secret, of_next_pod, wants_certificates
from taskd.core.acjob.pods import PodMaker
from taskd.core.acjob.seen import FAILED, RUNNING, PodSeen
from taskd.core.certificates import VARIABLE
from tests.core.acjob.samples import ADDRESSES, env_of, make_job, make_template

SECRET = "taskd-certificates-job"  # noqa: S105 - the name of one
AT_THE_PLACE = {"volumeMounts": [{"name": "mine", "mountPath": "/user/taskd"}]}


def pod_of(job: Job, kind: str = "Worker", issued: str = SECRET) -> dict[str, Any]:
    return PodMaker(job, ADDRESSES, gang=True, issued=issued).pod(Slot(kind, 0), 0)


def seen(*, certified: bool, phase: str = RUNNING, deleting: bool = False) -> PodSeen:
    notes = {names.CERTIFIED: SECRET} if certified else {}
    return PodSeen("p", "u", Slot("Worker", 0), phase=phase, deleting=deleting, annotations=notes)


def test_a_pod_sees_the_certificates_of_its_job() -> None:
    """Mounted where the variable says, for the owner's eyes, and not without them; one that stands by too."""
    standby = PodMaker(make_job(), ADDRESSES, gang=True, issued=SECRET).standby(0, 0)
    for pod in (pod_of(make_job(), "Master"), pod_of(make_job(), "Worker"), standby):
        (container,) = pod["spec"]["containers"]
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}

        assert "/user/taskd/certificates" == env_of(pod)[VARIABLE]
        assert {"secretName": SECRET, "defaultMode": 0o400} == (
            volumes[mounted["/user/taskd/certificates"]]["secret"]
        )
        assert SECRET == pod["metadata"]["annotations"][names.CERTIFIED]


def test_a_job_without_certificates_has_nothing_of_them() -> None:
    """Pods are what they were before."""
    pod = pod_of(make_job(), issued="")

    assert VARIABLE not in env_of(pod)
    assert names.CERTIFIED not in pod["metadata"]["annotations"]
    assert "taskd-certificates" not in {volume["name"] for volume in pod["spec"]["volumes"]}


def test_the_users_own_value_wins() -> None:
    """Whoever says where the certificates are is believed."""
    template = make_template(env=[{"name": VARIABLE, "value": "/mine"}])

    assert "/mine" == env_of(pod_of(make_job(worker=template)))[VARIABLE]


@pytest.mark.parametrize(
    ("context", "container", "mode"),
    [
        ({}, {}, 0o400),
        ({"runAsUser": 0}, {}, 0o400),
        ({"runAsUser": 1000}, {}, 0o444),
        ({"runAsUser": 1000, "fsGroup": 1000}, {}, 0o400),
        ({}, {"runAsUser": 1000}, 0o444),
        ({"runAsUser": 1000}, {"runAsUser": 0}, 0o400),
        ({"runAsNonRoot": True}, {}, 0o444),
    ],
)
def test_the_key_can_be_read_by_who_runs(context: Any, container: Any, mode: int) -> None:
    """By root alone where root runs, by the pod's group where it has one, else by all in the pod."""
    template = make_template(container={"securityContext": container}, securityContext=context)
    volumes = pod_of(make_job(worker=template, leader=template))["spec"]["volumes"]

    assert [mode] == [volume["secret"]["defaultMode"] for volume in volumes if "secret" in volume]


@pytest.mark.parametrize(
    ("job", "wanted"),
    [
        (make_job(), True),
        (make_job(annotations={names.LEAVE_TEMPLATE: "true"}), False),
        (make_job(worker=make_template(container=AT_THE_PLACE)), False),
        (make_job(leader=make_template(container=AT_THE_PLACE)), False),
        (make_job(labels={"app": "mindie", "jobID": "u-2"}), False),
    ],
)
def test_all_pods_of_a_job_can_have_them_or_the_job_has_none(job: Job, wanted: bool) -> None:
    """A template that is to stay as it is, or has something at that place, keeps the whole job without."""
    assert wanted == wants_certificates(job)
    assert (SECRET if wanted else "") == of_next_pod(job, (), issuing=True)


@pytest.mark.parametrize("issuing", [True, False])
@pytest.mark.parametrize("certified", [True, False])
def test_a_pod_does_as_those_that_are_there(certified: bool, issuing: bool) -> None:
    """Whatever the controller's settings are by now: a pod that differs could not join."""
    others = [seen(certified=certified)]

    assert (SECRET if certified else "") == of_next_pod(make_job(), others, issuing=issuing)


@pytest.mark.parametrize("gone", [{"deleting": True}, {"phase": FAILED}])
def test_pods_that_are_gone_bind_nobody(gone: Any) -> None:
    """A job that starts anew is what the settings say now."""
    assert SECRET == of_next_pod(make_job(), [seen(certified=False, **gone)], issuing=True)
    assert "" == of_next_pod(make_job(), [seen(certified=True, **gone)], issuing=False)


def test_the_certificate_names_the_uid_and_nothing_that_a_user_chooses() -> None:
    """A label or a name could be another job's."""
    assert "u-1" == identity(make_job(labels={"jobID": "u-2"}, annotations={"jobID": "u-2"}))


def test_the_secret_goes_with_its_job() -> None:
    """Owned by UID."""
    (owner,) = job_secret(make_job(), {}, {})["metadata"]["ownerReferences"]

    assert ("AscendJob", "job", "u-1", True) == (
        owner["kind"],
        owner["name"],
        owner["uid"],
        owner["controller"],
    )
