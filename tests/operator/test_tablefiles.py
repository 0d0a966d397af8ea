"""Rank tables as files: on storage that hangs, and beside what is not ours."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from taskd.core.acjob.ranktable import Written
from taskd.operator.tablefiles import MARK, STUCK, TableFiles

TABLE = Written('{"status":"completed"}', 3)


def listed(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


async def test_a_table_is_written_whole_and_only_where_it_changes(tmp_path: Path) -> None:
    """What was there before is shown to whoever decides."""
    files = TableFiles(str(tmp_path), "here")
    shown: list[Written | None] = []

    def decide(held: Written | None) -> Written | None:
        shown.append(held)
        return TABLE if held is None else None

    await files.update("team", "job", "u-1", decide)
    first = (tmp_path / "team.job" / "hccl.json").stat()
    await files.update("team", "job", "u-1", decide)

    assert [None, TABLE] == shown
    assert {"hccl.json", "version", MARK} == listed(tmp_path / "team.job")
    assert first == (tmp_path / "team.job" / "hccl.json").stat()
    assert 0o644 == first.st_mode & 0o777


@pytest.mark.parametrize("name", ["hccl.json", "version", MARK])
@pytest.mark.parametrize("what", ["pipe", "link", "directory"])
async def test_what_is_no_regular_file_is_refused(name: str, what: str, tmp_path: Path) -> None:
    """Neither waits the controller for a writer of a pipe, nor does it follow a link."""
    folder = tmp_path / "team.job"
    folder.mkdir()
    match what:
        case "pipe":
            os.mkfifo(folder / name)
        case "link":
            (tmp_path / "secret").write_text("theirs")
            (folder / name).symlink_to(tmp_path / "secret")
        case _:
            (folder / name).mkdir()

    with pytest.raises(OSError, match=r"regular file|Too many levels"):
        await TableFiles(str(tmp_path)).update("team", "job", "u-1", lambda _held: TABLE)
    assert {name} == listed(folder)


async def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """A user who may write to the storage cannot have the controller write elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "team.job").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        await TableFiles(str(tmp_path)).update("team", "job", "u-1", lambda _held: TABLE)
    assert set() == listed(tmp_path / "elsewhere")


async def test_storage_that_hangs_holds_up_its_own_jobs_for_a_bounded_time(tmp_path: Path) -> None:
    """A few threads are given to it, then it is refused at once; when it answers again, so do we."""
    files = TableFiles(str(tmp_path), limit_s=0.05)
    answers = threading.Event()
    hung = []

    def hang(_held: Written | None) -> Written | None:
        hung.append(threading.current_thread())
        answers.wait(30)
        return TABLE

    for number in range(STUCK):
        with pytest.raises(OSError, match="no answer within"):
            await files.update("team", f"job-{number}", "u", hang)
    with pytest.raises(OSError, match="does not answer"):
        await files.update("team", "job-0", "u", lambda _held: TABLE)
    with pytest.raises(OSError, match="does not answer"):
        await files.update("team", "another", "u", lambda _held: TABLE)
    assert STUCK == len(hung)

    answers.set()
    for thread in hung:
        await asyncio.to_thread(thread.join, 30)
    await asyncio.sleep(0)
    await files.update("team", "another", "u", lambda _held: TABLE)
    assert {"hccl.json", "version", MARK} == listed(tmp_path / "team.another")
    assert set() == listed(tmp_path / "team.job-0"), "what came too late was not written"


async def test_the_table_of_a_living_namesake_stays(tmp_path: Path) -> None:
    """Made again under the same name, a job has the table; the end of the first one does not concern it."""
    files = TableFiles(str(tmp_path), "here")
    await files.update("team", "job", "u-1", lambda _held: TABLE)
    await files.update("team", "job", "u-2", lambda _held: None)
    await files.remove("team", "job", "u-1")
    assert (tmp_path / "team.job" / "hccl.json").exists()

    await files.remove("team", "job", "u-2")
    assert set() == listed(tmp_path)


async def test_only_our_own_tables_of_jobs_that_are_gone_are_left_behind(tmp_path: Path) -> None:
    """Another cluster's on the same storage, a user's, and those of other namespaces are not."""
    ours, theirs = TableFiles(str(tmp_path), "here"), TableFiles(str(tmp_path), "there")
    for name in ("gone", "alive"):
        await ours.update("team", name, name, lambda _held: TABLE)
    await ours.update("other", "gone", "gone-2", lambda _held: TABLE)
    await theirs.update("team", "foreign", "foreign", lambda _held: TABLE)
    (tmp_path / "team.user").mkdir()
    (tmp_path / "team.user" / "hccl.json").write_text("{}")
    (tmp_path / "team.moved").mkdir()
    (tmp_path / "team.moved" / MARK).write_bytes((tmp_path / "team.gone" / MARK).read_bytes())

    left = await ours.left_behind(lambda uid: uid == "alive", "team")

    assert ["gone"] == [mark.uid for mark in left]
    assert {"gone", "gone-2"} == {mark.uid for mark in await ours.left_behind(lambda uid: uid == "alive")}


async def test_what_others_put_beside_a_table_stays(tmp_path: Path) -> None:
    """A table goes with its unfinished parts, and with nothing else."""
    files = TableFiles(str(tmp_path), "here")
    await files.update("team", "job", "u-1", lambda _held: TABLE)
    for name in (".hccl.json.1234abcd", "notes.txt"):
        (tmp_path / "team.job" / name).write_text("x")

    await files.remove("team", "job", "u-1")

    assert {"notes.txt"} == listed(tmp_path / "team.job")
