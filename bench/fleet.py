"""Figure: one order to 8,000 workers behind 1,000 proxies, and the manager's memory while it holds them.

The manager is the real one in its own process. One other process holds the thousand proxies (see
``fleet_client``). The order goes out through the manager's own ``ping`` call.
"""

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
from jobrun import free_port
from table import Result, tell

from taskd.cli.client import call
from taskd.core.launch import LOCAL_HOST, JobOptions
from taskd.kit.roles import CONFIG_VARIABLE
from taskd.manager.config import ManagerConfig

HERE = Path(__file__).resolve().parent
JOB, TOKEN = "fleet", "bench"
JOIN_LIMIT_S = 120.0
SPARE_FILES = 256


def measure_fleet(*, quick: bool, home: Path) -> Result:
    """Open the fleet and time the order."""
    proxies, workers, orders = (200, 8, 5) if quick else (1000, 8, 20)
    result = Result()
    _raise_file_limit(proxies + SPARE_FILES, result)
    for beats in (False, True):
        took = _measure(result, home, proxies, workers, orders, beats=beats)
        words = "agents beating twice a second, ranks stepping" if beats else "quiet job"
        result.add(
            f"order to {proxies}x{workers} workers and all acks, {words}", took, median=1000, worst=1000
        )
    return result


def _measure(
    result: Result, home: Path, proxies: int, workers: int, orders: int, *, beats: bool
) -> list[float]:
    port = free_port()
    address = f"{LOCAL_HOST}:{port}"
    with (
        _manager(port, proxies, home, beats=beats) as manager,
        _fleet(address, proxies, workers, beats=beats) as fleet,
    ):
        began = time.monotonic()
        _wait_joined(address, fleet, proxies)
        tell(f"{proxies} proxies joined after {time.monotonic() - began:.1f} s")
        time.sleep(2.0)
        took = []
        cpu_before, fleet_before, wall_before = cpu_s(manager.pid), cpu_s(fleet.pid), time.monotonic()
        for _ in range(orders):
            answer = cast("dict[str, float]", call(address, TOKEN, "ping", {}, 20.0))
            if answer["acks"] != proxies * workers:
                result.note(f"an order reached only {answer['acks']} of {proxies * workers} workers")
            took.append(answer["took_ms"])
            time.sleep(0.3)
        wall = time.monotonic() - wall_before
        shares = (cpu_s(manager.pid) - cpu_before) / wall, (cpu_s(fleet.pid) - fleet_before) / wall
        result.add(
            f"manager's memory with {proxies} proxies, beats {'on' if beats else 'off'}",
            [_rss_mb(manager.pid)],
            "MB",
            worst=500,
        )
        result.note(
            f"beats {'on' if beats else 'off'}: the manager used {shares[0]:.2f} of a core, "
            f"the process with the simulated containers {shares[1]:.2f}"
        )
    return took


def _raise_file_limit(wanted: int, result: Result) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            result.note(
                f"RLIMIT_NOFILE is at most {hard} here, {wanted} are needed: the fleet will be incomplete"
            )
            wanted = hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def _manager(port: int, proxies: int, home: Path, *, beats: bool) -> Iterator["subprocess.Popen[bytes]"]:
    options = JobOptions(min_nodes=proxies, max_nodes=proxies)
    config = ManagerConfig(JOB, options, port=port, token=TOKEN, log_file=str(home / "manager.log"))
    if not beats:  # agents that do not beat must not be taken for lost ones
        config = replace(config, node_lost_s=3600.0)
    env = {**os.environ, CONFIG_VARIABLE: msgspec.json.encode(config).decode(), "TASKD_HOME": str(home)}
    process = subprocess.Popen([sys.executable, "-m", "taskd.manager"], env=env, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.kill()
        process.wait()


@contextlib.contextmanager
def _fleet(address: str, proxies: int, workers: int, *, beats: bool) -> Iterator["subprocess.Popen[bytes]"]:
    words = [
        sys.executable,
        str(HERE / "fleet_client.py"),
        "--manager",
        address,
        "--token",
        TOKEN,
        "--job",
        JOB,
    ]
    words += ["--proxies", str(proxies), "--workers", str(workers), *([] if beats else ["--no-beats"])]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _wait_joined(address: str, fleet: "subprocess.Popen[bytes]", proxies: int) -> None:
    deadline = time.monotonic() + JOIN_LIMIT_S
    out = fleet.stdout
    if out is None:
        raise RuntimeError("the fleet has no output")
    while time.monotonic() < deadline:
        line = out.readline()
        if not line:
            raise RuntimeError("the fleet's process ended")
        if msgspec.json.decode(line)["started"] == proxies:
            return
    raise RuntimeError(f"not all proxies joined {address} within {JOIN_LIMIT_S:g} s")


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    """Return the largest memory that a process had."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")
