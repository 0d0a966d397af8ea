"""Standby pods: what they are called."""

import pytest

from taskd.core.acjob.switching import backup_name


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("job-worker-0", "job-worker-0-hot-abcdef"),
        ("job-worker-0-hot-123456", "job-worker-0-hot-abcdef"),
        ("my-hot-dog-worker-0", "my-hot-dog-worker-0-hot-abcdef"),
        ("my-hot-123456-worker-0", "my-hot-123456-worker-0-hot-abcdef"),
    ],
)
def test_a_standby_is_named_after_its_place(source: str, expected: str) -> None:
    """Switching again does not lengthen the name, and a job's own name is never cut."""
    assert expected == backup_name(source, "abcd-ef01-2345")
