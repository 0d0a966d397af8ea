"""However deep in its tasks a controller fails, its last line says why, in words."""

import asyncio
from collections.abc import Coroutine

import pytest

from taskd.cli import controller
from taskd.cli.errors import CliError
from taskd.core.exits import ExitCode
from taskd.kube.elector import LeadershipLost
from taskd.kube.errors import ApiUnreachable, ConfigError, NotLeader


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (NotLeader("first does not hold the lease"), ExitCode.INTERNAL, "leadership lost: first does not"),
        (LeadershipLost("the lease was not renewed"), ExitCode.INTERNAL, "leadership lost: the lease was"),
        (ApiUnreachable("no answer"), ExitCode.INTERNAL, "no answer"),
        (ConfigError("no such file"), ExitCode.USAGE, "no such file"),
        (OSError("address already in use"), ExitCode.USAGE, "address already in use"),
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_error_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: ExitCode, words: str, depth: int
) -> None:
    """Also one of a task in a group of tasks in a group: a group's own text tells a person nothing."""
    failure = error
    for _ in range(depth):
        failure = ExceptionGroup("unhandled errors in a TaskGroup", [failure])

    def fail(work: Coroutine[None, None, None]) -> None:
        work.close()
        raise failure

    monkeypatch.setattr(asyncio, "run", fail)
    with pytest.raises(CliError) as raised:
        controller.run({}, "")

    assert str(raised.value).startswith(words)
    assert code == raised.value.code
