"""Who takes part, and how each is started: its fastest settings that are safe.

Beside TaskD each contestant has an environment of its own below ``out/peers`` (``tools/peers.sh`` makes them,
all with the same torch). One whose environment is missing is skipped. What the settings mean:

* torchrun looks for dead workers every 0.1 s. Without a store of their own per attempt its restarted workers
  read the addresses of the dead ones over gloo and fail, hence the variable.
* torchft's lighthouse takes a replica for lost after 1 s without a heartbeat (default 5 s). Once with four
  replicas, and once with a fifth that computes along and steps in. A collective may last 2 s (default 60 s).
* NVIDIA's in-process wrapper has a fifth process that waits, polls every 0.25 s and uses a gloo limit of 2 s.
* its launcher and DLRover restart processes as torchrun does; DLRover keeps its checkpoint in shared memory.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recovery.ledgers import WORLD
from recovery.processes import Group

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LOCAL = "127.0.0.1"
EVERY = "10"
MASTER_S = 30.0
# Of this run alone: what a job leaves in shared memory bears its name.
JOB = f"bench{os.getpid()}"

_DROPPED = ("BENCH_", "TORCH", "DLROVER", "TASKD_", "PET_", "MASTER_", "RANK", "WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One that is measured. ``home`` is its environment; without one it lives in ours."""

    name: str
    what: str
    launch: Callable[[Group, Path], None]
    home: str = ""

    def python(self, peers: Path) -> Path:
        """Return the interpreter to use."""
        return peers / self.home / "bin" / "python" if self.home else Path(sys.executable)

    def missing(self, peers: Path) -> str:
        """Say why this one cannot take part; empty if it can."""
        if self.home and not (peers / self.home / ".ready").exists():
            return f"not installed; `make bench-peers` makes {peers / self.home}"
        return ""


def base_env() -> dict[str, str]:
    """Return the environment that all have in common: one thread each, and nothing of an outer job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONWARNINGS": "ignore",
        "BENCH_EVERY": EVERY,
        # Jobs run in directories of their own, where a relative path would find another TaskD, or none.
        "PYTHONPATH": os.pathsep.join(str(Path(part).resolve()) for part in _python_path()),
        **{name: value for name, value in os.environ.items() if name == "BENCH_SLEEP_S"},
    }


def _python_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that nobody listens on now."""
    while True:
        with socket.socket() as probe:
            probe.bind((LOCAL, 0))
            first: int = probe.getsockname()[1]
        if first + count < 65536 and all(_is_free(first + offset) for offset in range(1, count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOCAL, port)) != 0


def taskd_words(job: str, *flags: str, script: str = "train_taskd.py") -> list[str]:
    """Return the command that runs the workload under TaskD."""
    command = [sys.executable, "-m", "taskd.cli.main", "run", "--job", job]
    command += ["--manager-port", str(free_ports(1)), *flags]
    return [*command, str(SCRIPTS / script)]


def start_taskd(group: Group, *flags: str, nproc: int = WORLD, spares: int = 2) -> None:
    """Run the workload under TaskD."""
    words = taskd_words(JOB, "--nproc-per-node", str(nproc), "--spares", str(spares), *flags)
    group.start(words, {"TASKD_HOME": str(group.place / "home"), "BENCH_EVERY": "0"})


def start_bare(group: Group, extra: dict[str, str] | None = None) -> None:
    """Run the workload with nothing but its environment."""
    port = str(free_ports(1))
    for rank in range(WORLD):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
        place |= {"MASTER_ADDR": LOCAL, "MASTER_PORT": port, "BENCH_EVERY": "0"}
        group.start([sys.executable, str(SCRIPTS / "train_plain.py")], {**place, **(extra or {})})


def _taskd(group: Group, _python: Path) -> None:
    start_taskd(group)


def _elastic(python: Path, script: str, nproc: int = WORLD) -> list[str]:
    words = [str(python), "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={nproc}"]
    words += ["--log-dir=logs", "--max-restarts=3", "--monitor-interval=0.1", "--rdzv-backend=c10d"]
    return [*words, f"--rdzv-endpoint={LOCAL}:{free_ports(1)}", str(SCRIPTS / script)]


def _torchrun(group: Group, python: Path) -> None:
    group.start(_elastic(python, "train_plain.py"), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def _torchft(group: Group, python: Path, replicas: int = WORLD) -> None:
    port = free_ports(1)
    lighthouse = [str(python.with_name("torchft_lighthouse")), "--bind", f"{LOCAL}:{port}"]
    lighthouse += ["--min_replicas", "1" if replicas == WORLD else str(WORLD)]
    group.start([*lighthouse, "--heartbeat_timeout_ms", "1000"])
    for replica in range(replicas):
        extra = {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}", "REPLICA_GROUP_ID": str(replica)}
        extra |= {"NUM_REPLICA_GROUPS": str(replicas), "BENCH_GROUP_LIMIT_S": "2"}
        extra |= {"BENCH_SPARE": "1" if replicas > WORLD else "0"}
        group.start(_elastic(python, "train_torchft.py", nproc=1), extra)


def _torchft_spare(group: Group, python: Path) -> None:
    _torchft(group, python, WORLD + 1)


def _nvrx(group: Group, python: Path) -> None:
    port, processes = free_ports(12), WORLD + 1
    for rank in range(processes):
        extra = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
        extra |= {"MASTER_ADDR": LOCAL, "MASTER_PORT": str(port), "BENCH_ACTIVE": str(WORLD)}
        group.start([str(python), str(SCRIPTS / "train_nvrx.py")], {**extra, "BENCH_GROUP_LIMIT_S": "2"})


def _ft_launcher(group: Group, python: Path) -> None:
    words = [str(python.with_name("ft_launcher")), f"--nproc-per-node={WORLD}", "--max-restarts=3"]
    words += ["--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint={LOCAL}:{free_ports(1)}"]
    words += ["--ft-enable-nic-monitor=False", str(SCRIPTS / "train_plain.py")]
    group.start(words, {"BENCH_HEARTBEAT": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def _dlrover(group: Group, python: Path) -> None:
    port = free_ports(1)
    name = f"{JOB}x{port}"
    # Its own launcher cannot start a local master under this torch; one that runs already is used.
    master = [str(python), "-m", "dlrover.python.master.main", "--port", str(port), "--node_num", "1"]
    group.start([*master, "--job_name", name, "--platform", "local"])
    deadline = time.monotonic() + MASTER_S
    while _is_free(port) and time.monotonic() < deadline:
        time.sleep(0.1)
    words = [str(python.with_name("dlrover-run")), "--standalone", f"--nproc-per-node={WORLD}"]
    words += ["--max-restarts=3", "--monitor-interval=0.1", str(SCRIPTS / "train_dlrover.py")]
    extra = {"DLROVER_MASTER_ADDR": f"{LOCAL}:{port}", "ELASTIC_JOB_NAME": name}
    group.start(words, {**extra, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


TASKD = Contestant("taskd", "TaskD, 2 warm spares", _taskd)
TORCHRUN = Contestant("torchrun", "torchrun, checkpoint every 10 steps", _torchrun)
OTHERS = (
    Contestant("torchft", "torchft", _torchft, "torchft"),
    Contestant("torchft-spare", "torchft, a fifth replica computes along", _torchft_spare, "torchft"),
    Contestant("nvrx", "NVRx in-process, a fifth process waits", _nvrx, "nvrx"),
    Contestant("nvrx-launcher", "NVRx launcher", _ft_launcher, "nvrx"),
    Contestant("dlrover", "DLRover, checkpoint in memory every 10 steps", _dlrover, "dlrover"),
)
ALL = (TASKD, TORCHRUN, *OTHERS)
