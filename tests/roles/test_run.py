"""``taskd run`` with real processes: starts, faults, ends."""

import json
import os
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from taskd.testing.kube.processes import free_port
from tests.roles.harness import RunningJob, eventually, job_files, running

pytestmark = pytest.mark.slow

STEPS = str(Path(__file__).with_name("steps.py"))


def test_a_plain_script_gets_torchruns_ranks_and_ends_with_zero(tmp_path: Path) -> None:
    """Four ranks, each with its number; nothing is left afterwards."""
    script = tmp_path / "plain.py"
    script.write_text("import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], flush=True)\n")
    with running(tmp_path, "--nproc-per-node", "4", str(script)) as job:
        assert 0 == job.wait()

    assert ["0 4", "1 4", "2 4", "3 4"] == sorted(job.out.splitlines())
    assert [] == job_files(job)


def test_a_failing_rank_ends_the_job_with_its_code_and_its_story(tmp_path: Path) -> None:
    """With no restarts left: the rank's own code, which rank, what, and where its log is."""
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('a bad day')\ntime.sleep(60)\n"
    )
    with running(tmp_path, "--nproc-per-node", "2", "--max-restarts", "0", str(script)) as job:
        assert 1 == job.wait()

    assert "rank 1" in job.err
    assert "ValueError: a bad day" in job.err
    log = job.err.rsplit("its log is ", 1)[1].strip()
    assert "a bad day" in (Path(log) / "stderr.log").read_text()


@pytest.mark.parametrize(("how", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_exit_codes_are_those_of_a_shell(tmp_path: Path, how: str, code: int) -> None:
    """A rank's code is the job's; a signal counts 128 more."""
    script = tmp_path / "fail.py"
    script.write_text(f"import os, sys\n{how}\n")
    with running(tmp_path, "--max-restarts", "0", str(script)) as job:
        assert code == job.wait()


def test_a_killed_rank_restarts_the_group_and_the_job_ends_well(tmp_path: Path) -> None:
    """Kill -9 of one rank: all get new processes, no step is missing, one incident is told."""
    with running(tmp_path, "--nproc-per-node", "2", STEPS, "100", "0.05") as job:
        job.at_step(5)
        before = job.pids()
        os.kill(before[1], signal.SIGKILL)
        eventually(lambda: job.saved_status().get("generation") == 2, "the second generation")
        after = job.pids()
        assert 0 == job.wait()

    assert not set(before.values()) & set(after.values())
    for rank in range(2):
        steps = [int(line.split()[0]) for line in (tmp_path / f"done-{rank}.txt").read_text().splitlines()]
        assert list(range(100)) == steps
    (incident,) = job.timeline()
    assert ("recovered", 1) == (incident["outcome"], incident["rank"])
    assert "SIGKILL" in incident["reason"]
    assert incident["phases_ms"].keys() >= {"detect", "decide", "release", "spawn", "join", "first step"}


def test_the_same_failure_again_and_again_stops_early(tmp_path: Path) -> None:
    """Three times the same line: the job ends with that reason instead of 32767 restarts."""
    script = tmp_path / "fail.py"
    script.write_text("import os\nif os.environ['RANK'] == '0':\n    raise KeyError('always')\n")
    with running(tmp_path, "--nproc-per-node", "2", str(script)) as job:
        assert 1 == job.wait()

    assert "3 times in a row" in job.err
    assert 2 == job.saved_status()["restarts"]


def test_max_restarts_is_a_budget(tmp_path: Path) -> None:
    """Two restarts allowed: the third fault ends the job."""
    (tmp_path / "faults.jsonl").write_text(
        "\n".join(json.dumps({"step": step, "rank": 0, "kind": "kill"}) for step in (3, 6, 9, 12))
    )
    faults = str(tmp_path / "faults.jsonl")
    with running(tmp_path, "--max-restarts", "2", "--faults", faults, STEPS, "500", "0.02") as job:
        assert 137 == job.wait()

    assert "all 2 restarts of this node are used up" in job.err


@pytest.mark.parametrize("kind", ["raise", "exit"])
def test_faults_inside_the_process_come_from_the_command_line(tmp_path: Path, kind: str) -> None:
    """``taskd inject raise`` and ``exit`` happen in the rank at its next step."""
    with running(tmp_path, "--nproc-per-node", "2", STEPS, "200", "0.02") as job:
        job.at_step(3)
        code = ["--code", "9"] if kind == "exit" else []
        job.cli("inject", kind, "--rank", "1", *code, "job")
        eventually(lambda: job.saved_status().get("generation") == 2, "the second generation")
        assert 0 == job.wait()

    (incident,) = job.timeline()
    assert 1 == incident["rank"]
    assert ("InjectedFault" if kind == "raise" else "code 9") in incident["what"]


def test_a_scheduled_fault_does_not_fire_again_in_a_replacement(tmp_path: Path) -> None:
    """The step comes twice, the fault once."""
    faults = tmp_path / "faults.jsonl"
    faults.write_text('{"step": 4, "rank": 1, "kind": "exit", "code": 3}\n')
    with running(tmp_path, "--nproc-per-node", "2", "--faults", str(faults), STEPS, "12", "0.02") as job:
        assert 0 == job.wait()

    assert 1 == len(job.timeline())


def test_a_server_that_never_joins_is_supervised(tmp_path: Path) -> None:
    """An inference server has no steps: it is restarted, shown, and stopped in order."""
    server = tmp_path / "server.sh"
    server.write_text("#!/bin/sh\ntrap 'echo bye; exit 0' TERM\necho up $$\nwhile true; do sleep 0.1; done\n")
    server.chmod(0o755)
    with running(tmp_path, "--nproc-per-node", "2", "--no-python", str(server)) as job:
        first = job.pids()
        os.kill(first[0], signal.SIGKILL)
        eventually(lambda: job.saved_status().get("generation") == 2, "the second generation")
        second = job.pids()
        assert second != first
        job.cli("stop", "job")
        assert 143 == job.wait()

    assert "bye" in job.out


def test_sigterm_to_the_launcher_stops_in_order(tmp_path: Path) -> None:
    """Workers get SIGTERM and their grace; the code says which signal it was."""
    script = tmp_path / "graceful.py"
    script.write_text(
        "import signal, sys, time\n"
        "def bye(*_): print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    with running(tmp_path, str(script)) as job:
        eventually(lambda: "ready" in job.out, "the script")
        job.process.send_signal(signal.SIGTERM)
        assert 143 == job.wait()

    assert "saved" in job.out
    assert [] == job_files(job)


def test_kill_9_of_the_launcher_leaves_nothing(tmp_path: Path) -> None:
    """Roles, workers and the workers' own children end with it."""
    script = tmp_path / "parent.py"
    script.write_text("import subprocess, time\nsubprocess.Popen(['sleep', '600'])\ntime.sleep(600)\n")
    job = RunningJob(tmp_path, "--nproc-per-node", "2", str(script))
    try:
        job.pids()
        eventually(lambda: sum(p.name() == "sleep" for p in job.family()) == 2, "the grandchildren")
        family = job.family()
        job.process.kill()
        eventually(lambda: not [p for p in family[1:] if p.is_running()], "the family to be gone", 15)
    finally:
        job.close()


def test_output_is_teed_with_torchruns_prefix(tmp_path: Path) -> None:
    """``--tee 3`` puts the role and the local rank in front of each line; ``--redirects`` hides it."""
    script = tmp_path / "talk.py"
    script.write_text("import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)\n")
    with running(
        tmp_path, "--nproc-per-node", "2", "--tee", "3", "--log-dir", str(tmp_path / "logs"), str(script)
    ) as job:
        assert 0 == job.wait()

    assert {"[default0]:out 0", "[default1]:out 1"} == set(job.out.splitlines())
    assert "[default0]:err" in job.err
    assert 4 == len(list((tmp_path / "logs").rglob("std*.log")))


def test_clear_errors_cost_exit_code_2(tmp_path: Path) -> None:
    """A port in use: one sentence, no traceback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flag in ("--manager-port", "--master-port"):
            home = tmp_path / flag.strip("-")
            home.mkdir()
            with running(home, flag, str(port), STEPS, "1", "0") as job:
                assert 2 == job.wait()
            assert f"port {port}" in job.err
            assert "Traceback" not in job.err


def test_two_launchers_meet_as_two_nodes(tmp_path: Path) -> None:
    """Static and c10d: two launchers, one manager, ranks numbered across both."""
    for backend in ("static", "c10d"):
        port = free_port()
        jobs = []
        for rank in range(2):
            home = tmp_path / f"{backend}{rank}"
            home.mkdir()
            if backend == "static":
                where = [
                    "--node-rank",
                    str(rank),
                    "--master-addr",
                    "127.0.0.1",
                    "--master-port",
                    str(port + 1),
                ]
            else:
                where = [
                    "--rdzv-backend",
                    "c10d",
                    "--rdzv-endpoint",
                    f"127.0.0.1:{port + 1}",
                    "--rdzv-id",
                    "x",
                ]
            script = home / "env.py"
            script.write_text(
                "from os import environ as e\nprint(e['RANK'], e['WORLD_SIZE'], e['GROUP_RANK'])\n"
            )
            jobs.append(
                RunningJob(
                    home,
                    "--nnodes",
                    "2",
                    "--nproc-per-node",
                    "2",
                    "--manager-port",
                    str(port),
                    *where,
                    str(script),
                )
            )
            time.sleep(0.2)
        try:
            assert [0, 0] == [job.wait() for job in jobs], [job.err for job in jobs]
            lines = sorted(line for job in jobs for line in job.out.splitlines())
            assert ["0 4 0", "1 4 0", "2 4 1", "3 4 1"] == lines
        finally:
            for job in jobs:
                job.close()


def test_a_finished_job_can_still_be_looked_at(tmp_path: Path) -> None:
    """Status, timeline, trace and logs outlive the processes."""
    faults = tmp_path / "faults.jsonl"
    faults.write_text('{"step": 2, "rank": 1, "kind": "kill"}\n')
    with running(tmp_path, "--nproc-per-node", "2", "--faults", str(faults), STEPS, "11", "0.02") as job:
        assert 0 == job.wait()
        assert "started again after fault 1" in job.err

    status = job.status()
    assert ("ended", 0) == (status["phase"], status["exit_code"])
    assert {"succeeded"} == {rank["state"] for rank in status["ranks"]}
    assert {10} == {rank["step"] for rank in status["ranks"]}
    assert "rank 1 step 10" in job.cli("logs", "--rank", "1", "job").stdout
    trace = tmp_path / "trace.json"
    job.cli("timeline", "--perfetto", str(trace), "job")
    (incident,) = job.timeline()
    phases = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert sum(incident["phases_ms"].values()) == pytest.approx(
        sum(event["dur"] for event in phases if event["name"] in incident["phases_ms"]) / 1000, rel=0.01
    )


def test_a_full_disk_does_not_stop_the_training(tmp_path: Path) -> None:
    """Nothing of the job's record can be written: the ranks finish all the same, or say why not."""
    script = tmp_path / "short.py"
    script.write_text("import time\ntime.sleep(1)\n")
    home = tmp_path / "taskd"
    with running(tmp_path, "--nproc-per-node", "2", str(script)) as job:
        eventually((job.directory / "status.json").exists, "the first status")
        for path in (home / "jobs" / "job").glob("status.json*"):
            path.unlink()
        (home / "jobs" / "job" / "status.json").mkdir()
        assert 0 == job.wait()


def test_metrics_are_served_where_asked(tmp_path: Path) -> None:
    """A scraper finds the job's phase and its ranks."""
    port = free_port()
    with running(
        tmp_path, "--nproc-per-node", "2", STEPS, "100000", "0.02", env={"TASKD_METRICS_PORT": str(port)}
    ) as job:
        job.at_step(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        job.cli("stop", "job")
        assert 143 == job.wait()

    assert 'taskd_phase{job="job",phase="running"} 1.0' in text
    assert 'taskd_ranks_alive{job="job"} 2.0' in text


def test_two_launchers_of_one_job_share_a_home(tmp_path: Path) -> None:
    """Two machines with one file system, or two nodes on one machine: each rank has its own log."""
    port = free_port()
    where = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    where += ["--manager-port", str(port)]
    script = tmp_path / "say.py"
    script.write_text("import os\nprint('I am', os.environ['RANK'])\n")
    homes = [tmp_path / "one", tmp_path / "two"]
    shared = {"TASKD_HOME": str(tmp_path / "home")}
    jobs = []
    for rank, home in enumerate(homes):
        home.mkdir()
        jobs.append(RunningJob(home, *where, "--node-rank", str(rank), str(script), env=shared))
    try:
        assert [0, 0] == [job.wait() for job in jobs], [job.err for job in jobs]
        assert ["I am 0\n", "I am 1\n"] == [job.out for job in jobs]
        logs = sorted((tmp_path / "home" / "jobs" / "job" / "logs").rglob("stdout.log"))
        assert ["I am 0\n", "I am 1\n"] == [log.read_text() for log in logs]
    finally:
        for job in jobs:
            job.close()


@pytest.mark.parametrize(
    ("env", "why"), [({"TASKD_TOKEN": "a\nb"}, "TASKD_TOKEN"), ({"TASKD_METRICS_PORT": "x"}, "METRICS_PORT")]
)
def test_a_bad_variable_is_refused_before_anything_starts(
    tmp_path: Path, env: dict[str, str], why: str
) -> None:
    """One sentence with the variable's name, code 2."""
    with running(tmp_path, STEPS, "1", "0", env=env) as job:
        assert 2 == job.wait()

    assert why in job.err
    assert "Traceback" not in job.err


def test_a_log_directory_that_cannot_be_used_stops_nothing(tmp_path: Path) -> None:
    """The roles' own logs are not worth a job."""
    with running(tmp_path, STEPS, "3", "0", env={"TASKD_LOG_PATH": "/dev/null"}) as job:
        assert 0 == job.wait()
