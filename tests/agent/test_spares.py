"""A spare uses the time in which it waits for its rank, and is there when it is wanted."""

import os
import signal
from pathlib import Path

import pytest
import torch

from taskd.agent.torch import warm
from taskd.core.exits import Exit
from tests.agent.test_nursery import LIGHT, LIMIT_S, gone, pids_in, until, ward

MODULE = """
import os, time
done = []
def go():
    return "warm"
def prepare():
    for name in ("one", "two", "three"):
        {step}
        done.append(name)
        yield name
"""
SCRIPT = "import loads; print(*loads.done)"


def spare_names(nursery: int) -> list[str]:
    """Return what the nursery's children are called, by the kernel."""
    pids = Path(f"/proc/{nursery}/task/{nursery}/children").read_text(encoding="ascii").split()
    lines = [Path(f"/proc/{pid}/cmdline") for pid in pids]
    return [line.read_bytes().replace(b"\0", b" ").strip().decode() for line in lines if line.exists()]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module to warm up with, where nursery and spares find it."""
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTHONPATH", path)
    return tmp_path / "loads.py"


async def test_a_spare_prepares_itself_while_it_waits(tmp_path: Path, module: Path) -> None:
    """And says how far it is in its command line."""
    module.write_text(MODULE.format(step="pass"))
    async with ward(tmp_path, warm="loads:go", spares=1) as w:
        await until(lambda: "taskd spare (three)" in spare_names(w.nursery.pid))
        child = await w.spawn("worker", SCRIPT)

        assert Exit(code=0) == await w.ended("worker"), w.err("worker")
        assert ("spare", "one two three\n") == (child.source, w.out("worker"))


async def test_a_launch_ends_the_preparation_after_a_step(tmp_path: Path, module: Path) -> None:
    """The rank does not wait for the rest of it."""
    go_on = tmp_path / "go on"
    module.write_text(
        MODULE.format(step=f"while done and not os.path.exists({str(go_on)!r}): time.sleep(0.01)")
    )
    async with ward(tmp_path, warm="loads:go", spares=1) as w:
        await until(lambda: "taskd spare (one)" in spare_names(w.nursery.pid))
        child = await w.spawn("worker", SCRIPT)
        go_on.touch()

        assert Exit(code=0) == await w.ended("worker"), w.err("worker")
        assert ("spare", "one two\n") == (child.source, w.out("worker"))


async def test_a_spare_that_cannot_prepare_itself_is_a_spare(tmp_path: Path, module: Path) -> None:
    """Why it could not stands in the nursery's log."""
    module.write_text(MODULE.format(step="raise OSError('no such device')"))
    log = tmp_path / "nursery.log"
    async with ward(tmp_path, warm="loads:go", spares=1) as w:
        await until(lambda: "no such device" in log.read_text())
        child = await w.spawn("worker", SCRIPT)

        assert Exit(code=0) == await w.ended("worker"), w.err("worker")
        assert "spare" == child.source


@pytest.mark.parametrize(("name", "value"), [("TASKD_SPARE_DEVICE", "0"), ("CUDA_VISIBLE_DEVICES", "")])
def test_a_spare_can_be_kept_away_from_devices(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it looked for one"))
    monkeypatch.setenv(name, value)
    assert [] == list(warm.prepare())


async def test_a_stopped_spare_is_replaced(tmp_path: Path) -> None:
    """It would take its launch and never run."""
    async with ward(tmp_path, warm=LIGHT, spares=1) as w:
        children = Path(f"/proc/{w.nursery.pid}/task/{w.nursery.pid}/children").read_text(encoding="ascii")
        (spare,) = {*pids_in(children)} - {w.nursery.zygote_pid}
        os.kill(spare, signal.SIGSTOP)
        await until(lambda: gone(spare))
        assert await w.nursery.warm_ready(LIMIT_S)
        child = await w.spawn("a", "print('here')")

        assert Exit(code=0) == await w.ended("a")
        assert child.pid != spare
