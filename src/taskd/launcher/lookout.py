"""The door at which a launcher answers other launchers of its job: that it lives, and whom it obeys.

It is the launcher's own, not a role's: roles come and go, and the question is whether the machine is there.
One line in, one line out. Whoever does not know the token gets no answer; where the job has certificates, nor
does whoever cannot show that of this job.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from taskd.core.succession import Answer, Candidate, Roster, Sight, Term
from taskd.kit.dictconfig import join_address
from taskd.kit.papers import NO_PAPERS, JobPapers
from taskd.kit.secured import answering_context, asking_context, peer_names

ANSWER_S = 1.0
LINE_LIMIT = 8 * 1024 * 1024


class Question(msgspec.Struct):
    """Who asks."""

    job: str
    token: str = ""
    who: Candidate | None = None
    """Where the launcher is that asks; one that was started again may be somewhere else than before."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a launcher says of itself. ``node`` and ``run`` tell whether it is the one that was meant."""

    node: str
    term: Term = field(default_factory=Term)
    manager: str = ""
    roster: Roster | None = None
    me: Candidate | None = None


async def open_lookout(
    host: str,
    port: int,
    job: str,
    token: str,
    word: Callable[[Candidate | None], Word],
    papers: JobPapers = NO_PAPERS,
) -> tuple[asyncio.Server, str]:
    """Answer questions at a port, or at any other if that one is taken; returns the address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                if papers and papers.identity not in peer_names(writer.get_extra_info("peercert")):
                    return
                question = msgspec.json.decode(await reader.readline(), type=Question)
                if (question.job, question.token) == (job, token):
                    writer.write(msgspec.json.encode(word(question.who)) + b"\n")
                    await writer.drain()
        except (OSError, TimeoutError, ValueError, msgspec.MsgspecError):
            pass
        finally:
            writer.close()

    context = answering_context(papers) if papers else None
    try:
        server = await asyncio.start_server(serve, host, port, limit=LINE_LIMIT, ssl=context)
    except OSError:
        server = await asyncio.start_server(serve, host, 0, limit=LINE_LIMIT, ssl=context)
    return server, join_address(host, server.sockets[0].getsockname()[1])


async def ask(
    address: str,
    node: str,
    job: str,
    token: str,
    who: Candidate | None = None,
    papers: JobPapers = NO_PAPERS,
    limit_s: float = ANSWER_S,
) -> tuple[Answer, Roster | None]:
    """Ask the launcher of a node; never fails, and never takes much longer than the limit."""
    word = await ask_anyone(address, job, token, who, papers, limit_s)
    if isinstance(word, Sight):
        return Answer(word), None
    if word.node != node:
        return Answer(Sight.REFUSED), None
    return Answer(Sight.ANSWERED, word.term, word.manager), word.roster


async def ask_anyone(
    address: str,
    job: str,
    token: str,
    who: Candidate | None = None,
    papers: JobPapers = NO_PAPERS,
    limit_s: float = ANSWER_S,
) -> Word | Sight:
    """Ask whatever launcher is at an address or name; never fails, nor takes much more than the limit."""
    host, _, port = address.rpartition(":")
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=LINE_LIMIT)
            if papers:
                # Only now: a machine that is too busy for a handshake is there, like one too busy to answer.
                await writer.start_tls(asking_context(papers), server_hostname=papers.identity)
            writer.write(msgspec.json.encode(Question(job, token, who)) + b"\n")
            line = await reader.readline()
        return msgspec.json.decode(line, type=Word)
    except (ConnectionRefusedError, msgspec.MsgspecError):
        # Nobody is there, or somebody else.
        return Sight.REFUSED
    except (OSError, TimeoutError, ValueError):
        # Its kernel took the connection: the machine is there, and has too much to do, or was stopped.
        return Sight.SILENT if writer is None else Sight.BUSY
    finally:
        if writer is not None:
            writer.close()


def held_address(holder: socket.socket) -> str:
    """Return the address of a port that is held."""
    host, port = holder.getsockname()[:2]
    return join_address(host, port)


async def close_lookout(server: asyncio.Server) -> None:
    """Stop answering."""
    server.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            await server.wait_closed()
