"""A nursery that the launcher sends ahead: it prepares processes before there is an agent to want them."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from taskd.agent.nursery import Nursery, Sent, WorkerLaunch, take_sent
from taskd.agent.surroundings import NURSERY_VARIABLE, base_env, warm_up
from taskd.core.launch import LaunchSpec
from taskd.core.programs import Program, ProgramKind
from taskd.launcher import forerunner
from taskd.launcher.forerunner import Forerunner, send_ahead
from tests.agent.test_nursery import gone, until

CHATTY = "tests.agent.chatty:warm"
LIMIT_S = 15.0
JOB = LaunchSpec("job", Program(ProgramKind.SCRIPT, "train.py"), spares=1)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forerunner]:
    """A nursery on its way, with a warm-up that takes no time and says something."""
    monkeypatch.setattr(forerunner, "warm_up", lambda _spec, *, spare: CHATTY)  # noqa: ARG005
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
    sent = send_ahead(JOB)
    assert sent is not None
    yield sent
    sent.let_go()
    sent.bury()


def take(ahead: Forerunner) -> Sent:
    """Inherit it as an agent does."""
    env = ahead.env
    fd, _, pid = env[NURSERY_VARIABLE].partition(",")
    sent = take_sent({NURSERY_VARIABLE: f"{os.dup(int(fd))},{pid}"})
    ahead.let_go()
    assert sent is not None
    return sent


def nursery(sent: Sent, directory: Path) -> Nursery:
    """Make an agent's side of it."""
    log = str(directory / "nursery.log")
    return Nursery(env=os.environ, on_exit=print, warm=CHATTY, spares=1, log_file=log, sent=sent)


async def test_the_agent_finds_processes_prepared(ahead: Forerunner, tmp_path: Path) -> None:
    """It takes the nursery over that was sent for it; what was said before it came is in its log."""
    sent = take(ahead)
    mine = nursery(sent, tmp_path)
    await mine.start()
    try:
        assert await mine.warm_ready(LIMIT_S)
        script = tmp_path / "script.py"
        script.write_text("print('trained')")
        program = Program(ProgramKind.SCRIPT, str(script))
        out = str(tmp_path / "out")
        child = await mine.spawn(WorkerLaunch("a", program, base_env(JOB, os.environ), str(tmp_path), out))

        assert (sent.pid, "spare") == (mine.pid, child.source)
        await until(lambda: Path(out).exists() and Path(out).read_text() == "trained\n")
        assert "importing a lot" in (tmp_path / "nursery.log").read_text()
    finally:
        await mine.close()
    assert gone(sent.pid)


async def test_it_ends_with_a_launcher_that_has_no_agent_yet(ahead: Forerunner) -> None:
    """Nothing is left of a launcher that was ended early."""
    pid = ahead.env[NURSERY_VARIABLE].partition(",")[2]

    ahead.let_go()

    await until(lambda: gone(int(pid)))


async def test_an_agent_helps_itself_if_it_was_lost(ahead: Forerunner, tmp_path: Path) -> None:
    """The loss of what was sent ahead costs the time that it had saved, and no more."""
    sent = take(ahead)
    os.kill(sent.pid, 9)
    ahead.bury()
    mine = nursery(sent, tmp_path)

    await mine.start()

    try:
        assert mine.alive
        assert sent.pid != mine.pid
    finally:
        await mine.close()


@pytest.mark.parametrize(
    "spec",
    [
        replace(JOB, spares=0),
        replace(JOB, local_nodes=2),
        replace(JOB, spare_nodes=1),
        replace(JOB, program=Program(ProgramKind.COMMAND, "make")),
    ],
    ids=["nothing kept ready", "several nodes", "a spare node", "not Python"],
)
def test_it_is_sent_only_where_one_node_prepares_processes(spec: LaunchSpec) -> None:
    """Whatever else a job needs, its agents start."""
    assert send_ahead(spec) is None


def test_no_child_sees_what_the_agent_was_told() -> None:
    """An agent without one that was sent ahead has nothing to take."""
    env = {"HOME": "/root"}

    assert take_sent(env) is None
    assert {"HOME": "/root"} == env
    assert warm_up(JOB, spare=False)
