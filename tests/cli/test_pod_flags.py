"""``taskd run`` without flags in a pod of an AscendJob."""

import pytest

from taskd.cli.errors import FlagError
from taskd.cli.flags import RunRequest, parse_run
from taskd.cli.machine import Machine
from taskd.core.acjob import names
from tests.core.acjob.samples import env_of, make_job, make_pods

JOB = make_job(workers=2, annotations={names.RECOVER_STRATEGY: "retry, recover"})
WORKER = env_of(make_pods(JOB)["job-worker-1"]) | {"POD_IP": "10.0.0.9"}


def parse(*words: str, **more: str) -> RunRequest:
    env = {**WORKER, **more}
    machine = Machine(
        env,
        lambda _: True,
        lambda name: name,
        lambda _: "",
        lambda _: 0,
        lambda: 2,
        lambda: "id",
        lambda: "job-worker-1",
    )
    return parse_run([*words, "train.py", "--lr", "1"], machine)


def test_a_pod_needs_no_flags() -> None:
    """Nodes, rank, processes, addresses, name and strategies; ranks meet at a port that is free."""
    spec = parse().spec

    assert (3, 3, 2, 8) == (spec.min_nodes, spec.max_nodes, spec.node_rank, spec.local_world)
    assert ("10.96.0.7", 0, 0, "u-1") == (spec.master_addr, spec.master_port, spec.manager_port, spec.job)
    assert ("retry", "recover") == spec.recover_strategies
    assert spec.pod is not None
    assert ("10.0.0.9", False) == (spec.pod.address, spec.pod.spare)
    assert "" == spec.options().master_addr  # where ranks meet is rank 0's own pod, not the Service


def test_one_line_says_what_was_taken_from_where() -> None:
    """Each value beside the variable or the flag that it is from."""
    (line,) = parse("--nproc-per-node", "2").notes

    assert line == (
        "in a pod: node 2 (RANK), of 3 (TASKD_NODES), 2 processes each (--nproc-per-node), manager at "
        "10.96.0.7:9601 (MASTER_ADDR), job u-1 (MINDX_TASK_ID), "
        "strategies retry,recover (TASKD_RECOVER_STRATEGY)"
    )


def test_a_flag_that_is_given_wins() -> None:
    """Also over the environment, one by one; torchrun's own variables count as flags."""
    flags = ("--nnodes", "4", "--node-rank", "3", "--master-addr", "other", "--job", "mine")
    spec = parse(*flags, "--manager-port", "7000", "--master-port", "2223", PET_NPROC_PER_NODE="1").spec

    assert (4, 3, 1) == (spec.max_nodes, spec.node_rank, spec.local_world)
    assert ("other", 2223, 7000, "mine") == (spec.master_addr, spec.master_port, spec.manager_port, spec.job)


@pytest.mark.parametrize("flags", [("--standalone",), ("--local-nodes", "2"), ("--rdzv-endpoint", "h:1")])
def test_who_arranges_the_nodes_by_hand_means_it(flags: tuple[str, ...]) -> None:
    """Then nothing is taken from the pod, and nothing is said."""
    request = parse(*flags)

    assert None is request.spec.pod
    assert () == request.notes


def test_without_such_an_environment_nothing_changes() -> None:
    """A machine that is no pod gets what it always got."""
    assert None is parse(REPLICA_TYPE="").spec.pod
    assert 1 == parse(REPLICA_TYPE="").spec.max_nodes


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("RANK", "3", "RANK=3 in the environment: the job has 3 nodes"),
        ("RANK", "x", "RANK=x in the environment: it must be"),
        ("TASKD_NODES", "0", "TASKD_NODES=0 in the environment: the number of nodes"),
        ("LOCAL_WORLD_SIZE", "many", "LOCAL_WORLD_SIZE=many in the environment: it must be"),
        ("MASTER_ADDR", "a b", "MASTER_ADDR=a b in the environment: it is the name or the address"),
        ("MINDX_TASK_ID", "/x", "MINDX_TASK_ID=/x in the environment: a name is"),
        ("TASKD_MANAGER_PORT", "99999", "TASKD_MANAGER_PORT=99999 in the environment: it must be"),
        ("TASKD_PEERS", "a-[3-1]", "TASKD_PEERS="),
    ],
)
def test_a_mistake_names_the_variable(variable: str, value: str, says: str) -> None:
    """Before anything starts, in one sentence."""
    with pytest.raises(FlagError) as told:
        parse(**{variable: value})
    assert told.value.sentence.startswith(says)
