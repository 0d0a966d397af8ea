"""Which node a patched torchrun joins its job as, from what the operator gives to its pod."""

import socket
from types import SimpleNamespace

import pytest

from taskd.core.launch import LaunchSpec
from taskd.launcher.topology import LocalNode, Topology
from taskd.launcher.torch import seam
from tests.core.acjob.samples import env_of, make_job, make_pods

PODS = {name: env_of(pod) for name, pod in make_pods(make_job()).items()}
OWN = "127.0.0.9"


def launch(monkeypatch: pytest.MonkeyPatch, pod: str, host: str, *, reachable: bool = True) -> list[Topology]:
    """Let torchrun come to its seam in a pod that started with the guides' lines; returns what would run."""
    env = {**PODS[pod], "TASKD_PROCESS_ENABLE": "on", "POD_IP": OWN}
    if env["RANK"] == "0":
        env["MASTER_ADDR"] = OWN
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found: list[Topology] = []

    def run(_spec: LaunchSpec, topology: Topology) -> int:
        found.append(topology)
        return 0

    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(seam, "_run", run)
    monkeypatch.setattr(seam, "asyncio", SimpleNamespace(run=lambda code: code))
    monkeypatch.setattr(seam, "_reachable", lambda *_: reachable)
    monkeypatch.setattr(seam, "prepare_environment", lambda: None)
    config = SimpleNamespace(
        min_nodes=2, max_nodes=2, nproc_per_node=8, run_id="none", role="default", max_restarts=3,
        rdzv_backend="static", rdzv_endpoint=f"{env['MASTER_ADDR']}:2222", monitor_interval=5.0,
        rdzv_configs={"rank": int(env["RANK"]), "timeout": 900}, logs_specs=None, local_addr=OWN,
    )  # fmt: skip
    seam._launch(pytest.fail, config, "train.py", [], (), {})
    return found


@pytest.mark.parametrize(
    ("pod", "address"), [("job-master-0", OWN), ("job-worker-0", "10.96.0.7")], ids=["rank-0", "a-worker"]
)
def test_a_pod_of_a_place_joins_as_its_rank(monkeypatch: pytest.MonkeyPatch, pod: str, address: str) -> None:
    """Rank 0 has its manager beside it; the others go through the leader's Service."""
    (topology,) = launch(monkeypatch, pod, pod)

    rank = int(PODS[pod]["RANK"])
    assert (LocalNode(str(rank), rank, OWN),) == topology.nodes
    assert f"{address}:9601" == topology.manager_addr


@pytest.mark.parametrize("pod", ["job-master-0", "job-worker-0"], ids=["rank-0", "a-worker"])
def test_the_new_pod_of_a_hot_switch_stands_by(monkeypatch: pytest.MonkeyPatch, pod: str) -> None:
    """It has the same environment and another name; the manager is still in the pod of rank 0 that trains."""
    host = f"{pod}-hot-ab12cd"
    (topology,) = launch(monkeypatch, pod, host)

    assert (LocalNode(f"standby-{host}", -1, OWN, spare=True),) == topology.nodes
    assert "10.96.0.7:9601" == topology.manager_addr


def test_a_pod_that_stands_by_is_never_stock_torchrun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a manager it would take the rank of the pod that trains; it ends and says so."""
    with pytest.raises(SystemExit) as ended:
        launch(monkeypatch, "job-worker-0", "job-worker-0-hot-ab12cd", reachable=False)

    assert 5 == ended.value.code
    assert "a pod that stands by is of no use without" in capsys.readouterr().err
