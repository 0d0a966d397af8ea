"""The directory of jobs finds what runs, keeps what has ended, and believes only the kernel."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from taskd.core.status import IncidentStatus, JobPhase, JobStatus, NodeStatus, RankStatus
from taskd.kit import jobs

DEAD_PID = 2**22 + 1  # above the highest number that Linux gives


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a directory of its own."""
    monkeypatch.setenv("TASKD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that stands for a launcher."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def make_record(job: str, pid: int = DEAD_PID, stamp: float = 1.0) -> jobs.JobRecord:
    """Build a record; a pid that lives gets its true start time."""
    return jobs.JobRecord(
        job=job,
        launcher_pid=pid,
        launcher_start_ticks=jobs.read_start_ticks(pid) or 0,
        manager_addr="127.0.0.1:9601",
        token="secret",  # noqa: S106
        created_stamp=stamp,
        argv=("taskd", "run", "train.py"),
        cwd="here",
    )


def make_status(job: str, phase: JobPhase = JobPhase.ENDED) -> JobStatus:
    """Build a status with a rank and a node."""
    return JobStatus(
        job=job,
        phase=phase,
        reason="all ranks succeeded",
        generation=2,
        restarts=1,
        max_restarts=3,
        world_size=1,
        manager_pid=7,
        manager_addr="127.0.0.1:9601",
        started_stamp=1.0,
        stamp=2.0,
        nodes=(NodeStatus("n0", 0, "host", 1, 2, "running", connected=True),),
        ranks=(RankStatus(0, 0, "n0", 0, 9, "joined", 20, "logs/0"),),
        exit_code=0,
    )


def make_incident(number: int, outcome: str) -> IncidentStatus:
    """Build an incident."""
    return IncidentStatus(
        number,
        1.0,
        "killed",
        "rank 1 was killed",
        1,
        "n0",
        20,
        "recover",
        "one lost",
        outcome,
        2,
        {"detect": 1.5},
    )


def finish(job: str, stamp: float) -> None:
    """Leave a job that has ended."""
    jobs.open_job(make_record(job, stamp=stamp))
    jobs.write_status(make_status(job))


def test_what_is_written_is_read_back() -> None:
    """Record, status and timeline survive their way through the files."""
    jobs.open_job(make_record("a"))
    jobs.write_status(make_status("a"))
    jobs.append_incident("a", make_incident(1, "recovered"))

    assert make_record("a") == replace(jobs.read_record("a"), host="")
    assert make_status("a") == jobs.read_status("a")
    assert [make_incident(1, "recovered")] == jobs.read_timeline("a")
    assert jobs.logs_dir("a").is_dir()
    assert jobs.fired_dir("a").is_dir()


def test_the_token_is_for_the_owner_alone() -> None:
    """Neither the record nor the directories above it can be read by others."""
    place = jobs.open_job(make_record("a"))

    assert 0o600 == (place / "job.json").stat().st_mode & 0o777
    assert 0o700 == place.stat().st_mode & 0o777
    assert 0o700 == jobs.base_dir().stat().st_mode & 0o777


def test_a_status_is_replaced_as_a_whole() -> None:
    """No draft stays behind, and the last one counts."""
    finish("a", 1.0)
    jobs.write_status(make_status("a", JobPhase.RUNNING))

    status = jobs.read_status("a")
    assert status is not None
    assert JobPhase.RUNNING is status.phase
    assert ["fired", "job.json", "logs", "status.json"] == sorted(
        path.name for path in jobs.job_dir("a").iterdir()
    )


def test_a_later_line_of_the_timeline_replaces_the_earlier() -> None:
    """An incident is written when it begins and again when it ends."""
    finish("a", 1.0)
    for number, outcome in ((2, "recovering"), (1, "recovered"), (2, "recovered")):
        jobs.append_incident("a", make_incident(number, outcome))

    assert [(1, "recovered"), (2, "recovered")] == [
        (one.number, one.outcome) for one in jobs.read_timeline("a")
    ]


def test_a_torn_line_costs_only_itself() -> None:
    """A writer that died in the middle does not spoil what comes after."""
    finish("a", 1.0)
    jobs.append_incident("a", make_incident(1, "recovered"))
    with (jobs.job_dir("a") / "timeline.jsonl").open("ab") as file:
        file.write(b'{"number": 2, "sta')
    jobs.append_incident("a", make_incident(3, "recovered"))

    assert [1, 3] == [one.number for one in jobs.read_timeline("a")]


def test_a_job_lives_as_long_as_its_launcher(sleeper: subprocess.Popen[bytes]) -> None:
    """Also a zombie, which only waits to be buried, is dead."""
    record = make_record("a", sleeper.pid)

    assert jobs.is_live(record)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not jobs.is_live(record)


def test_a_reused_process_id_is_not_the_launcher(sleeper: subprocess.Popen[bytes]) -> None:
    """Another start time is another process."""
    record = make_record("a", sleeper.pid)

    assert not jobs.is_live(replace(record, launcher_start_ticks=record.launcher_start_ticks + 1))
    assert not jobs.is_live(make_record("b"))


def test_the_only_live_job_needs_no_name(sleeper: subprocess.Popen[bytes]) -> None:
    """Finished ones, even newer, do not get in its way."""
    finish("old", 1.0)
    jobs.open_job(make_record("live", sleeper.pid, 2.0))
    finish("new", 3.0)

    assert "live" == jobs.resolve_job(None).job
    assert "old" == jobs.resolve_job("old").job
    assert ["new", "live", "old"] == [record.job for record in jobs.list_jobs()]


def test_without_a_live_job_the_newest_is_meant() -> None:
    """One wants to know how the last run ended."""
    finish("old", 1.0)
    finish("new", 3.0)

    assert "new" == jobs.resolve_job(None).job


def test_several_live_jobs_are_listed(sleeper: subprocess.Popen[bytes]) -> None:
    """Guessing would stop the wrong one."""
    for name in ("one", "two"):
        jobs.open_job(make_record(name, sleeper.pid))

    with pytest.raises(jobs.JobLookupError, match=r"2 jobs run.*two, one"):
        jobs.resolve_job(None)


def test_an_unknown_job_is_answered_with_the_known() -> None:
    """And an empty machine with where was looked."""
    with pytest.raises(jobs.JobLookupError, match="no job is known"):
        jobs.resolve_job(None)
    finish("mine", 1.0)
    with pytest.raises(jobs.JobLookupError, match="no job other here; known are mine"):
        jobs.resolve_job("other")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden"])
def test_a_name_never_leaves_the_directory(name: str) -> None:
    """A name comes from the command line."""
    with pytest.raises(jobs.JobLookupError, match="not the name"):
        jobs.resolve_job(name)


def test_a_live_job_keeps_its_name(sleeper: subprocess.Popen[bytes]) -> None:
    """A second one of that name is refused; a finished one makes room, with all it left."""
    finish("a", 1.0)
    jobs.append_incident("a", make_incident(1, "recovered"))
    jobs.open_job(make_record("a", sleeper.pid))

    assert [] == jobs.read_timeline("a")
    with pytest.raises(jobs.JobLookupError, match="already runs here"):
        jobs.open_job(make_record("a"))


def test_sweeping_keeps_the_newest_and_reports_the_abandoned(sleeper: subprocess.Popen[bytes]) -> None:
    """An abandoned job may have left processes behind, so its traces stay until it is closed."""
    for number in range(4):
        finish(f"done-{number}", float(number))
    jobs.open_job(make_record("live", sleeper.pid))
    jobs.open_job(make_record("silent"))
    jobs.open_job(make_record("lost"))
    jobs.write_status(make_status("lost", JobPhase.RUNNING))

    assert {"silent", "lost"} == {record.job for record in jobs.sweep(keep=2)}
    assert {"done-3", "done-2", "live", "silent", "lost"} == {record.job for record in jobs.list_jobs()}

    for name in ("silent", "lost"):
        jobs.close_abandoned(jobs.read_record(name), "its launcher was killed", 9.0)
    assert [] == jobs.sweep(keep=10)
    status = jobs.read_status("silent")
    assert status is not None
    assert "its launcher was killed" == status.reason


def test_jobs_of_another_machine_are_not_judged() -> None:
    """A shared home shows other machines' jobs, whose processes cannot be seen from here."""
    jobs.write_record(replace(make_record("far"), host="elsewhere"))

    assert [] == jobs.list_jobs()
    assert [] == jobs.sweep()


def test_a_spoilt_record_hides_only_its_job() -> None:
    """A full disk may leave an empty file."""
    finish("good", 1.0)
    finish("bad", 2.0)
    (jobs.job_dir("bad") / "job.json").write_text("")

    assert ["good"] == [record.job for record in jobs.list_jobs()]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"TASKD_HOME": "{tmp}/t", "XDG_STATE_HOME": "{tmp}/x"}, "{tmp}/t"),
        ({"XDG_STATE_HOME": "{tmp}/x"}, "{tmp}/x/taskd"),
        ({}, "{tmp}/.local/state/taskd"),
        ({"TASKD_HOME": "{tmp}/file/inside"}, "{temporary}"),
    ],
)
def test_the_base_is_the_first_place_that_can_be_written(
    env: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that cannot be written is normal in a container; then it is a directory of one's own."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    places = {"tmp": str(tmp_path), "temporary": f"{tmp_path}/tmp/taskd-{os.getuid()}"}

    filled = {name: value.format(**places) for name, value in env.items()}
    assert expected.format(**places) == str(jobs.base_dir(filled))
