"""A pod's place in its job, read from what the operator gives it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.acjob import names
from taskd.core.hccl import VariableError
from taskd.core.podplace import format_peers, is_host_of, leader_host, parse_peers, read_pod, standby_node
from tests.core.acjob.samples import env_of, make_job, make_pods, make_template

PODS = {name: env_of(pod) for name, pod in make_pods(make_job(workers=2)).items()}


def test_everything_is_found_in_what_the_operator_injects() -> None:
    """Nodes, rank, processes, the leader's address and the job, each with the variable that it is from."""
    facts = read_pod(PODS["job-worker-1"], "job-worker-1")

    assert facts is not None
    assert facts.flags == {
        "nnodes": ("3", "TASKD_NODES"),
        "node-rank": ("2", "RANK"),
        "nproc-per-node": ("8", "LOCAL_WORLD_SIZE"),
        "master-addr": ("10.96.0.7", "MASTER_ADDR"),
        "job": ("u-1", "MINDX_TASK_ID"),
    }
    peers = ("job-master-0.acjob-pods", "job-worker-0.acjob-pods", "job-worker-1.acjob-pods")
    assert (peers, False) == (facts.place.peers, facts.place.spare)


def test_pods_of_different_sizes_are_counted() -> None:
    """A leader with four devices and two workers with eight: three pods, which no division tells."""
    pods = make_pods(make_job(workers=2, leader=make_template(4)))
    facts = [read_pod(env_of(pod), name) for name, pod in pods.items()]

    assert ["3", "3", "3"] == [each.flags["nnodes"][0] for each in facts if each]
    assert ["4", "8", "8"] == [each.flags["nproc-per-node"][0] for each in facts if each]


def test_the_reference_operator_s_environment_is_enough() -> None:
    """It counts no pods and gives no names; where all pods are alike their number follows."""
    env = {name: value for name, value in PODS["job-worker-0"].items() if not name.startswith("TASKD_")}
    facts = read_pod(env, "job-worker-0")

    assert facts is not None
    assert ("3", "WORLD_SIZE/LOCAL_WORLD_SIZE") == facts.flags["nnodes"]
    assert () == facts.place.peers


def test_sizes_that_do_not_fit_are_refused_unless_the_pods_were_counted() -> None:
    """The sentence says what to do; a flag is the way out."""
    env = {k: v for k, v in PODS["job-worker-0"].items() if not k.startswith("TASKD_")} | {"WORLD_SIZE": "20"}

    with pytest.raises(VariableError, match=r"WORLD_SIZE=20 .*--nnodes"):
        read_pod(env, "job-worker-0")
    facts = read_pod(env, "job-worker-0", counted=True)
    assert facts is not None
    assert "nnodes" not in facts.flags


@pytest.mark.parametrize("missing", ["MINDX_TASK_ID", "MASTER_ADDR", "RANK", "REPLICA_TYPE"])
def test_without_a_part_of_it_this_is_no_pod(missing: str) -> None:
    """And so it is in a training process, where RANK means another thing."""
    env = PODS["job-worker-0"]

    assert None is read_pod({**env, missing: ""}, "job-worker-0")
    assert None is read_pod({**env, "TORCHELASTIC_RUN_ID": "x"}, "job-worker-0")
    assert None is read_pod({}, "laptop")


def test_a_standby_pod_is_told_by_its_name() -> None:
    """It has the rank of the pod that it may replace, and the operator gives it another name."""
    env = PODS["job-worker-1"]
    named = [
        read_pod(env, name) for name in ("job-worker-1", "job-worker-1.acjob-pods", "job-worker-1-hot-ab12")
    ]

    assert [False, False, True] == [facts.place.spare for facts in named if facts]
    kept_ready = read_pod({**env, "TASKD_SPARE_POD": "1"}, "job-worker-1")
    assert kept_ready is not None
    assert kept_ready.place.spare


def test_the_leader_is_found_where_a_script_wrote_another_address() -> None:
    """The guides export MASTER_ADDR=POD_IP wherever the rank is 0, also in a pod that stands by for it."""
    env = {**PODS["job-master-0"], "MASTER_ADDR": "10.0.0.9"}
    of_the_reference = {name: value for name, value in env.items() if name != "TASKD_LEADER"}

    assert "10.96.0.7" == leader_host(env)
    assert "10.0.0.9" == leader_host(of_the_reference)


def test_pods_that_have_no_names_are_not_listed() -> None:
    """A template that settles host names itself, or that is to be left alone."""
    for job in (
        make_job(worker=make_template(hostNetwork=True)),
        make_job(annotations={names.LEAVE_TEMPLATE: "true"}),
    ):
        env = env_of(make_pods(job)["job-worker-0"])
        assert "TASKD_PEERS" not in env
        assert "2" == env["TASKD_NODES"]


def test_a_leader_without_processes_has_no_place() -> None:
    """Its workers are counted from 0, as it is itself, so the ranks of pods do not tell them apart."""
    env = env_of(make_pods(make_job(leader=make_template(devices=0)))["job-worker-0"])

    assert not {"TASKD_NODES", "TASKD_PEERS", "TASKD_LEADER"} & set(env)


@given(st.lists(st.sampled_from([f"{a}-{n}{b}" for a in ("x", "y-z") for n in range(6) for b in ("", ".s")])))
def test_names_are_listed_in_their_order(listed: list[str]) -> None:
    """Whatever they are; a thousand workers are one entry."""
    assert tuple(listed) == parse_peers(format_peers(listed))
    assert "a-[0-999].b" == format_peers([f"a-{n}.b" for n in range(1000)])


@pytest.mark.parametrize("text", ["a-[5-2].b", "a-[0-20000].b"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    """A mistake in the variable is said and not guessed at."""
    with pytest.raises(VariableError, match="TASKD_PEERS"):
        parse_peers(text)


def test_how_long_a_pod_may_be_out_of_reach_can_be_said() -> None:
    """Less than a second would give up pods that are only late; 0 means never."""
    env = PODS["job-worker-1"]
    given = {text: read_pod({**env, "TASKD_REACH_S": text}, "job-worker-1") for text in ("", "4.5", "0")}
    assert [1.5, 4.5, 0.0] == [facts.place.reach_s for facts in given.values() if facts]
    for wrong in ("0.5", "-1", "soon", "nan"):
        with pytest.raises(VariableError, match="TASKD_REACH_S"):
            read_pod({**env, "TASKD_REACH_S": wrong}, "job-worker-1")


@pytest.mark.parametrize(
    ("host", "pod", "same"),
    [
        ("job-standby-0", "job-standby-0", True),
        ("job-standby-0", "job-standby-01", False),
        ("j" * 62, "j" * 62 + "-standby-0", True),
        ("j" * 62, "j" * 70, False),
    ],
)
def test_a_pod_is_known_by_its_host_name(host: str, pod: str, same: bool) -> None:
    """A kubelet cuts a name that is too long, and what would then end badly."""
    assert same == is_host_of(host, pod)
    assert f"standby-{host}" == standby_node(f"{host}.acjob-pods")
