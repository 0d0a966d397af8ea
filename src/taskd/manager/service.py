"""Run a manager with what surrounds it: the launcher's lifeline, signals, the metrics port."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping

from taskd.core.exits import ExitCode
from taskd.core.jobstate import Ending
from taskd.kit.lifeline import Lifeline
from taskd.kit.logs import Log
from taskd.manager.config import ManagerConfig
from taskd.manager.liaison import find_plane
from taskd.manager.metrics import expose
from taskd.manager.server import Manager

SIGTERM_CODE = ExitCode.SIGNAL_BASE + signal.SIGTERM


async def serve(config: ManagerConfig, log: Log, lifeline: Lifeline) -> Ending:
    """Manage a job to its end."""
    manager = Manager(config, log, lifeline, find_plane(os.environ, config.papers))
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()

    def told(note: Mapping[str, object]) -> None:
        if "stop" in note:
            code = note.get("code")
            code = code if isinstance(code, int) else 0
            # Who ends a job by SIGTERM (a node that is drained) wants to go on later; Ctrl-C means the end.
            manager.request_stop(str(note["stop"]), code, save=code == SIGTERM_CODE)
        if "agent_died" in note:
            pid = note.get("pid")
            manager.agent_died(str(note["agent_died"]), pid if isinstance(pid, int) else 0)

    lifeline.watch(gone.set, told)
    with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: the host has its own
        loop.add_signal_handler(
            signal.SIGTERM,
            lambda: manager.request_stop("the manager was told to end (SIGTERM)", SIGTERM_CODE, save=True),
        )
    work = asyncio.ensure_future(manager.run())
    others = [asyncio.ensure_future(lifeline.beat()), asyncio.ensure_future(gone.wait())]
    if config.metrics_port:
        others.append(asyncio.ensure_future(_serve_metrics(config, manager)))
    try:
        await asyncio.wait({work, others[1]}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            log.warning("launcher_gone")
            raise SystemExit(1)
        return work.result()
    finally:
        for task in (work, *others):
            task.cancel()
        await asyncio.gather(work, *others, return_exceptions=True)


async def _serve_metrics(config: ManagerConfig, manager: Manager) -> None:
    """Answer every request on the metrics port with the metrics: all that a scraper asks for."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5.0):
                await reader.readuntil(b"\r\n\r\n")
                body = expose(manager.status(), manager.timeline())
                head = (
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, config.host, config.metrics_port)
    async with server:
        await server.serve_forever()
