"""A process that was stopped, replaced and then continued does no harm."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.core.messages import LocalHello, Progress
from taskd.kit.pages import Page
from taskd.links.frames import BlockingFrames
from taskd.wire.envelope import Message, decode_envelope, unpack

pytestmark = pytest.mark.slow

OLD = """
import os, time
from taskd.worker.client import Worker, WorkerEnv
from taskd.worker.watch import Watch
watch = Watch(Worker(WorkerEnv.read(os.environ)), 0, lambda generation: None)
watch.start()
print("ready", flush=True)
while True:
    time.sleep(1)
"""
PATIENCE_S = 30.0


def test_a_continued_process_ends_before_it_says_anything(tmp_path: Path) -> None:
    """Another process has its page, and so its rank; it would stand for that rank otherwise."""
    page, link = str(tmp_path / "rank-0.page"), str(tmp_path / "proxy.sock")
    Page(page, create_generation=1).close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as proxy:
        proxy.bind(link)
        proxy.listen()
        env = {**os.environ, "TASKD_SOCKET": link, "TASKD_PAGE": page, "TASKD_GENERATION": "1", "RANK": "0"}
        old = subprocess.Popen([sys.executable, "-c", OLD], env=env, stdout=subprocess.PIPE, text=True)
        try:
            connection = BlockingFrames(proxy.accept()[0], PATIENCE_S)
            assert old.stdout is not None
            assert "ready\n" == old.stdout.readline()
            said = heard(connection)

            os.kill(old.pid, signal.SIGSTOP)
            new = Page(page, create_generation=2)  # what an agent does for a replacement
            new.raise_generation(2, 0)
            os.kill(old.pid, signal.SIGCONT)

            assert -signal.SIGKILL == old.wait(PATIENCE_S)
            assert [LocalHello, Progress] == [type(each) for each in said]
            assert [] == heard(connection)
            view = new.read()
            assert view is not None
            assert 0 == view.pid  # nothing of the old process is in the new page
            connection.close()
        finally:
            old.kill()
            old.wait()
            if old.stdout is not None:
                old.stdout.close()


def heard(connection: BlockingFrames) -> list[Message]:
    """Take what has come; the end of the connection is no message."""
    try:
        return [unpack(decode_envelope(data)) for data in connection.poll(0.5)]
    except (OSError, ValueError):
        return []
