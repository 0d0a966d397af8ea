"""The manager's eye on the mounted reset-config."""

from pathlib import Path

import pytest

from taskd.core.faults.texts.reset import Reset, RestartType
from taskd.core.jobstate import Event, ResetRead
from taskd.kit.logs import open_log
from taskd.manager.resetconfig import MOST_BYTES, ResetWatch, reset_directory
from tests.manager.mounted import Mounted


class Seen:
    """A manager that only listens."""

    def __init__(self) -> None:
        self.resets: list[Reset] = []

    def apply(self, event: Event) -> None:
        assert isinstance(event, ResetRead)
        self.resets.append(event.reset)


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "config")


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def watch(mounted: Mounted, seen: Seen) -> ResetWatch:
    return ResetWatch(mounted.place, seen, open_log("", role="manager", job="j"))


def test_what_a_kubelet_brings_is_read_through_its_links(
    watch: ResetWatch, mounted: Mounted, seen: Seen
) -> None:
    """The reference refuses links, so it reads nothing of a plain ConfigMap; a change is told once here."""
    first, second = Reset(), Reset(retry_time=1, restart_type=RestartType.POD)
    mounted.publish(first.data())
    watch.look()
    watch.look()
    mounted.publish(second.data())
    watch.look()
    mounted.publish(second.data())
    watch.look()

    assert [first, second] == seen.resets


def test_a_file_that_is_not_there_yet_is_waited_for(watch: ResetWatch, mounted: Mounted, seen: Seen) -> None:
    watch.look()
    mounted.publish(Reset(graceful_exit=1).data())
    watch.look()

    assert [Reset(graceful_exit=1)] == seen.resets


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"RankList": 7}',
        '{"RankList": [{"RankId": "x"}]}',
        '{"RetryTime": true}',
        "x" * (MOST_BYTES + 1),
    ],
)
def test_what_is_no_reset_config_changes_nothing(
    watch: ResetWatch, mounted: Mounted, seen: Seen, text: str
) -> None:
    mounted.publish(Reset(retry_time=3).data())
    watch.look()
    mounted.publish({"reset.json": text})
    watch.look()

    assert Reset(retry_time=3) == seen.resets[0]
    assert seen.resets[1:] in ([], [Reset()]), "an empty file says nothing"


def test_no_text_at_all_changes_nothing(watch: ResetWatch, mounted: Mounted, seen: Seen) -> None:
    (mounted.place / "reset.json").write_bytes(b"\xff\xfe")
    watch.look()

    assert [] == seen.resets


def test_outside_of_a_pod_nothing_is_looked_for(tmp_path: Path) -> None:
    assert reset_directory({}) is None
    assert tmp_path == reset_directory({"TASKD_RESET_CONFIG": str(tmp_path)})
