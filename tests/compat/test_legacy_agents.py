"""Jobs whose processes belong to another launcher, from the documented functions alone, on real processes.

The manager is the documentation's manager.py. The other launcher is a stand-in for msrun: it keeps real
processes, and lends TaskD the four callbacks of MindSpore's contract. torch's own elastic agent is real.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog

from taskd.agent.callbacks import Look
from taskd.agent.hosted import HostedAgent, HostedConfig, NoManagerError
from taskd.core.launch import JobOptions
from taskd.core.status import JobStatus
from taskd.kit import jobs
from taskd.kit.machine import find_free_port

JOB = "legacy-job"
WAIT_S = 20.0

MANAGER_PY = """\
from taskd.api import init_taskd_manager, start_taskd_manager
import os

job_id=os.getenv("MINDX_TASK_ID")
node_nums=NODES         # Total number of nodes (set by yourself)
proc_per_node=PROCS     # Number of training processes on each node (set by yourself)

init_taskd_manager({"job_id":job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
"""

RANK_PY = """\
import os, sys, time
rank = int(os.environ.get("RANK_ID") or os.environ["RANK"])
if os.environ.get("JOINS"):
    from taskd.api import init_taskd_worker, start_taskd_worker
    init_taskd_worker(rank, framework="ms")
    start_taskd_worker()
with open("starts.log", "a") as file:
    file.write(f"{rank} {os.getpid()}\\n")
while not os.path.exists("finish"):
    time.sleep(0.02)
sys.exit(int(open("finish").read() or 0))
"""

MSRUN_PY = """\
import os, subprocess, sys
from taskd.api import init_taskd_agent, init_taskd_proxy, register_func, start_taskd_agent

ranks = {}

def start(which):
    for rank in which:
        env = {**os.environ, "RANK_ID": str(rank)}
        ranks[rank] = subprocess.Popen([sys.executable, "rank.py"], env=env)

def kill(pids):
    for process in ranks.values():
        if pids == [-1] or process.pid in pids:
            process.kill()
            process.wait()
    return 0

def monitor(_):
    return {rank: {"pid": process.pid, "status": process.poll(), "global_rank": rank}
            for rank, process in ranks.items()}

def broken():
    if os.environ.get("BROKEN"):
        raise RuntimeError("no device is left")

if os.environ.get("OWN_PROXY"):
    assert init_taskd_proxy({"UpstreamAddr": "127.0.0.1", "UpstreamPort": os.environ["TASKD_MANAGER_PORT"]})
assert init_taskd_agent({"Framework": "MindSpore"})
register_func("KILL_WORKER", kill)
register_func("START_ALL_WORKER", lambda: start(range(1 if os.environ.get("BROKEN") else 2)) or broken())
register_func("START_WORKER_LIST", start)
register_func("MONITOR", monitor)
start_taskd_agent()
"""

TORCH_PY = """\
import os, sys
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from taskd.api import init_taskd_agent, init_taskd_proxy, register_func, start_taskd_agent

port = int(os.environ["STORE_PORT"])
store = RendezvousParameters(
    backend="static", endpoint=f"127.0.0.1:{port}", run_id="r", min_nodes=1, max_nodes=1, rank=0
)
spec = WorkerSpec(
    role="default", local_world_size=2, entrypoint=sys.executable, args=("rank.py",), max_restarts=5,
    rdzv_handler=get_rendezvous_handler(store), master_addr="127.0.0.1", master_port=port,
)

class Patched(LocalElasticAgent):
    def _invoke_run(self, role="default"):
        assert init_taskd_proxy({"UpstreamPort": os.environ["TASKD_MANAGER_PORT"]})
        assert init_taskd_agent({"Framework": "PyTorch"}, self)
        register_func("KILL_WORKER", self._stop_workers)
        register_func("START_ALL_WORKER", self._initialize_workers)
        register_func("MONITOR", self._monitor_workers)
        register_func("RESTART", self._restart_workers)
        return start_taskd_agent()

result = Patched(spec, logs_specs=DefaultLogsSpecs()).run()
print(result.state.name, sorted(result.failures), flush=True)
"""


@dataclass
class Scene:
    """One job: a directory, an environment, and the processes that the test started."""

    place: Path
    env: dict[str, str]
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, script: str, **env: str) -> subprocess.Popen[str]:
        with (self.place / f"{script}.err").open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, script],
                cwd=self.place,
                env={**self.env, **env},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def write_manager(self, nodes: int) -> None:
        text = MANAGER_PY.replace("NODES", str(nodes)).replace("PROCS", "2")
        (self.place / "manager.py").write_text(text)

    def starts(self) -> list[tuple[int, int]]:
        """Return (rank, pid) of every start so far."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.place / "starts.log").read_text().splitlines()
            return [(int(rank), int(pid)) for rank, pid in (line.split() for line in lines)]
        return []

    def status(self) -> JobStatus | None:
        return jobs.read_status(JOB)

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in self.place.glob("*.err"))

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what} in time\n{self.status()}\n{self.errors()}"
            time.sleep(0.02)

    def wait_for_starts(self, count: int) -> list[tuple[int, int]]:
        self.wait_for(f"{count} starts", lambda: len(self.starts()) >= count)
        return self.starts()

    def orders(self) -> list[str]:
        """Return what the agent wrote into its book before carrying it out."""
        lines = (jobs.job_dir(JOB) / "ledger" / "0.jsonl").read_text().splitlines()
        return [str(json.loads(line)["order"]) for line in lines]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    # Short, because the path of a unix socket is.
    place = Path(tempfile.mkdtemp(prefix="taskd-"))
    monkeypatch.setenv("TASKD_HOME", str(place / "home"))
    dropped = ("TASKD_", "MS_", "RANK", "POD_IP", "LOCAL_PROXY_ENABLE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    env |= {
        "TASKD_HOME": str(place / "home"),
        "TASKD_MANAGER_PORT": str(find_free_port("127.0.0.1")),
        "MINDX_TASK_ID": JOB,
        "MS_LOCAL_WORKER": "2",
        "MS_WORKER_NUM": "2",
        "MS_NODE_RANK": "0",
        "TMPDIR": str(place),
    }
    for name, text in {"rank.py": RANK_PY, "msrun.py": MSRUN_PY, "torch_agent.py": TORCH_PY}.items():
        (place / name).write_text(text)
    made = Scene(place, env)
    made.write_manager(nodes=1)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for _, pid in made.starts():
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(place, ignore_errors=True)


def alive(pid: int) -> bool:
    return jobs.read_start_ticks(pid) is not None


def proxy_pid(scene: Scene) -> int:
    status = scene.status()
    return status.nodes[0].proxy_pid if status is not None and status.nodes else 0


def rank_states(scene: Scene) -> list[str]:
    status = scene.status()
    return [each.state for each in status.ranks] if status is not None else []


def runs_under(scene: Scene, manager: int) -> bool:
    status = scene.status()
    return status is not None and status.manager_pid == manager and status.phase == "running"


def test_an_msrun_lives_through_the_loss_of_a_rank_a_manager_and_a_proxy(scene: Scene) -> None:
    """Ranks restart together; managers and proxies come and go unnoticed; each order is carried out once."""
    msrun = scene.start("msrun.py", OWN_PROXY="1", JOINS="1")  # before the manager: any order will do
    manager = scene.start("manager.py")
    first = scene.wait_for_starts(2)
    assert {0, 1} == {rank for rank, _ in first}
    scene.wait_for("joined workers", lambda: ["joined"] * 2 == rank_states(scene))

    os.kill(dict(first)[1], signal.SIGKILL)
    second = scene.wait_for_starts(4)[2:]
    assert {0, 1} == {rank for rank, _ in second}
    assert not any(alive(pid) for _, pid in first)

    manager.kill()
    manager.wait()
    manager = scene.start("manager.py")
    scene.wait_for("the new manager's picture", lambda: runs_under(scene, manager.pid))
    assert all(alive(pid) for _, pid in second)

    before = proxy_pid(scene)
    os.kill(before, signal.SIGKILL)
    scene.wait_for("a new proxy", lambda: proxy_pid(scene) not in (0, before))
    assert second == scene.starts()[2:]

    os.kill(dict(second)[0], signal.SIGKILL)  # the new manager and the new proxy can do it too
    scene.wait_for_starts(6)
    last_proxy = proxy_pid(scene)
    (scene.place / "finish").write_text("0")
    assert 0 == msrun.wait(WAIT_S), scene.errors()
    assert 0 == manager.wait(WAIT_S), scene.errors()
    scene.wait_for("the proxy's end", lambda: not alive(last_proxy))
    assert 6 == len(scene.starts())
    assert sorted(set(scene.orders())) == sorted(scene.orders())


def test_an_msrun_that_fails_the_same_way_again_and_again_ends_with_one(scene: Scene) -> None:
    """The agent brings its own proxy, the manager takes the number of nodes from it, and both give up."""
    scene.write_manager(nodes=0)
    (scene.place / "finish").write_text("3")
    manager = scene.start("manager.py")
    msrun = scene.start("msrun.py")

    assert 1 == msrun.wait(WAIT_S), scene.errors()
    assert 0 == manager.wait(WAIT_S), scene.errors()  # a manager.py does not look at the answer
    assert "exited with code 3" in scene.errors()
    status = scene.status()
    assert status is not None
    assert ("ended", 3) == (status.phase, status.exit_code)
    assert 3 == len({pid for rank, pid in scene.starts() if rank == 0})


def test_an_msrun_that_cannot_start_says_why_and_leaves_nothing(scene: Scene) -> None:
    """A callback that raises is a fault like any other; the rank that it had started already is ended."""
    manager = scene.start("manager.py")
    msrun = scene.start("msrun.py", BROKEN="1")

    assert 1 == msrun.wait(WAIT_S), scene.errors()
    assert 0 == manager.wait(WAIT_S), scene.errors()
    assert "no device is left" in scene.errors()
    assert not any(alive(pid) for _, pid in scene.starts())


class QuietHost:
    """Processes that nobody asked for yet."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, restart_count: int) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def look(self) -> dict[int, Look]:
        return {}

    def leave(self) -> None:
        self.calls.append("leave")


def test_an_agent_that_never_hears_of_a_manager_gives_up_in_time(tmp_path: Path) -> None:
    """The wait has an end, which is an error that names the limit, and nothing was started."""
    host = QuietHost()
    config = HostedConfig(
        job=JOB,
        node="0",
        wants_rank=0,
        addr="127.0.0.1",
        socket=str(tmp_path / "nobody.sock"),
        local_world=1,
        options=JobOptions(),
        manager_limit_s=0.2,
    )

    with pytest.raises(NoManagerError, match=r"in 0\.2 s"):
        HostedAgent(config, host, structlog.get_logger()).run()
    assert ["stop"] == host.calls


@pytest.mark.slow
def test_torchs_own_agent_gets_its_run_result(scene: Scene) -> None:
    """Stock torch methods as callbacks: a killed rank restarts the group, and a success is torch's own."""
    manager = scene.start("manager.py")
    torch_agent = scene.start("torch_agent.py", STORE_PORT=str(find_free_port("127.0.0.1")), RANK="0")
    first = scene.wait_for_starts(2)

    os.kill(dict(first)[1], signal.SIGKILL)
    scene.wait_for_starts(4)
    (scene.place / "finish").write_text("0")
    out, _ = torch_agent.communicate(timeout=WAIT_S)

    assert (0, "SUCCEEDED []\n") == (torch_agent.returncode, out), scene.errors()
    assert 0 == manager.wait(WAIT_S), scene.errors()
