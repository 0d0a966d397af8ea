"""Manager, proxies and launchers of a job with certificates, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from taskd.cli import client
from taskd.cli.errors import ManagerRefused, ManagerUnreachable
from taskd.core.reach import Knock
from taskd.core.succession import Candidate, Sight
from taskd.kit.issuing import Issued
from taskd.kit.papers import NO_PAPERS, JobPapers, PapersError, read_papers
from taskd.launcher.lookout import Word, ask_anyone, close_lookout, open_lookout
from taskd.links.knock import knock
from taskd.links.rpc import CALL, ServerStream, connect_rpc, serve_rpc
from taskd.links.tls import channel_credentials
from tests.links.papers import DAY_S, authority, job_papers, leaf, show

MINE, OTHERS = "3d5fe1c4-9d1f-4b8a-9f5e-0c7e1c3b2a10", "77777777-9d1f-4b8a-9f5e-0c7e1c3b2a10"
LIMIT_S = 1.0


@contextlib.asynccontextmanager
async def manager(papers: JobPapers, token: str = "") -> AsyncIterator[str]:
    """A manager that says everything again."""

    async def stream(proxy: ServerStream) -> None:
        while (data := await proxy.receive()) is not None:
            proxy.send(data)

    async def call(_request: bytes) -> bytes:
        return msgspec.msgpack.encode({"ok": True, "result": "heard"})

    server, port = await serve_rpc("127.0.0.1:0", token, stream, call, papers=papers)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def says(address: str, papers: JobPapers, token: str = "") -> bytes | None:
    """What a proxy hears when it has said something; nothing where it is refused."""
    async with connect_rpc(address, token, LIMIT_S, papers) as stream:
        with contextlib.suppress(ConnectionResetError):
            await stream.send(b"hello")
        return await stream.receive()


def outdated(tmp_path: Path, signer: Issued, successor: Issued) -> JobPapers:
    """Of the right job and signed by the old authority, and ready to believe the new one."""
    show(tmp_path / "outdated", leaf(signer, MINE), [signer, successor])
    return JobPapers(str(tmp_path / "outdated"), MINE)


@pytest.fixture
def signer() -> Issued:
    return authority()


@pytest.fixture
def mine(tmp_path: Path, signer: Issued) -> JobPapers:
    return job_papers(tmp_path / "mine", signer, MINE)


@pytest.fixture
def others(tmp_path: Path, signer: Issued) -> JobPapers:
    return job_papers(tmp_path / "others", signer, OTHERS)


async def test_the_parts_of_a_job_meet_without_a_token(mine: JobPapers) -> None:
    """The certificate says enough."""
    async with manager(mine) as address:
        assert b"hello" == await says(address, mine)


async def test_a_token_counts_beside_the_certificate(mine: JobPapers) -> None:
    """Whoever has set one is not let in without it."""
    async with manager(mine, "secret") as address:
        assert b"hello" == await says(address, mine, "secret")
        assert None is await says(address, mine, "wrong")


async def test_a_job_without_certificates_is_as_before(tmp_path: Path) -> None:
    """No TLS, and a token where there is one."""
    async with manager(NO_PAPERS, "secret") as address:
        assert b"hello" == await says(address, NO_PAPERS, "secret")
        assert None is await says(address, NO_PAPERS, "")


async def test_a_proxy_goes_to_no_manager_of_another_job(mine: JobPapers, others: JobPapers) -> None:
    """Whatever stands at the address: it has to prove that it is of this job, and the reason is told."""
    async with manager(others) as address:
        with pytest.raises(ConnectionRefusedError, match="Hostname Verification"):
            await says(address, mine)


async def test_a_manager_takes_no_proxy_of_another_job(mine: JobPapers, others: JobPapers) -> None:
    """Also one that does not care whom it speaks with is refused, with the reason."""
    async with manager(mine) as address:
        careless = [("grpc.ssl_target_name_override", MINE)]
        credentials = channel_credentials(read_papers(others.directory))
        async with grpc.aio.secure_channel(address, credentials, options=careless) as channel:
            call: Any = channel.unary_unary(CALL)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=LIMIT_S)

    assert grpc.StatusCode.PERMISSION_DENIED == caught.value.code()
    assert "the certificate is not of this job" == caught.value.details()


async def test_nobody_comes_in_without_a_certificate(mine: JobPapers) -> None:
    """Neither in the clear nor with the authority's certificate alone."""
    async with manager(mine) as address:
        with pytest.raises(ConnectionRefusedError):
            await says(address, NO_PAPERS)
        credentials = grpc.ssl_channel_credentials(read_papers(mine.directory).ca)
        named = [("grpc.ssl_target_name_override", MINE)]
        async with grpc.aio.secure_channel(address, credentials, options=named) as channel:
            call: Any = channel.unary_unary(CALL)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=LIMIT_S)

    assert grpc.StatusCode.UNAVAILABLE == caught.value.code()


async def test_a_certificate_that_has_ended_is_refused(
    tmp_path: Path, signer: Issued, mine: JobPapers
) -> None:
    """On either side."""
    ended = job_papers(tmp_path / "ended", signer, MINE, age_s=31 * DAY_S)
    for server, caller in ((mine, ended), (ended, mine)):
        async with manager(server) as address:
            with pytest.raises(ConnectionRefusedError):
                await says(address, caller)


async def test_a_stream_outlives_the_exchange_of_everything(
    tmp_path: Path, signer: Issued, mine: JobPapers
) -> None:
    """Renewal and a new authority cost no connection, and the next ones are made with what is new."""
    successor = authority()
    async with manager(mine) as address, connect_rpc(address, "", LIMIT_S, mine) as stream:
        await stream.send(b"before")
        assert b"before" == await stream.receive()

        show(Path(mine.directory), leaf(signer, MINE), [signer, successor])
        assert b"hello" == await says(address, mine)
        show(Path(mine.directory), leaf(successor, MINE), [signer, successor])
        assert b"hello" == await says(address, mine)
        show(Path(mine.directory), leaf(successor, MINE), [successor])
        assert b"hello" == await says(address, mine)
        with pytest.raises(ConnectionRefusedError):
            await says(address, outdated(tmp_path, signer, successor))

        await stream.send(b"after")
        assert b"after" == await stream.receive()


async def test_certificates_that_cannot_be_read_stop_a_manager(tmp_path: Path) -> None:
    """It does not serve in the clear instead."""
    with pytest.raises(PapersError, match=r"ca\.crt"):
        async with manager(JobPapers(str(tmp_path), MINE)):
            pass


async def test_the_command_line_shows_the_certificate(mine: JobPapers, others: JobPapers) -> None:
    """As the record of the job says; with another job's it gets nowhere."""

    def call(papers: JobPapers) -> object:
        return client.call(address, "", "status", {}, LIMIT_S, papers)

    async with manager(mine) as address:
        assert "heard" == await asyncio.to_thread(call, mine)
        with pytest.raises((ManagerRefused, ManagerUnreachable)):
            await asyncio.to_thread(call, others)


# --- launchers -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def lookout(papers: JobPapers) -> AsyncIterator[str]:
    def word(_who: Candidate | None) -> Word:
        return Word("node-0")

    server, address = await open_lookout("127.0.0.1", 0, "job", "", word, papers)
    try:
        yield address
    finally:
        await close_lookout(server)


async def test_launchers_of_a_job_answer_each_other(mine: JobPapers) -> None:
    """With the job's certificate on both sides."""
    async with lookout(mine) as address:
        assert Word("node-0") == await ask_anyone(address, "job", "", None, mine)


async def test_launchers_say_nothing_to_anybody_else(mine: JobPapers, others: JobPapers) -> None:
    """Neither to another job's certificate nor to none; and nobody else is believed."""
    async with lookout(mine) as address:
        assert isinstance(await ask_anyone(address, "job", "", None, others), Sight)
        assert isinstance(await ask_anyone(address, "job", "", None, NO_PAPERS), Sight)
        # Another job's certificate, from one who does not care whom it asks.
        pretender = JobPapers(others.directory, MINE)
        assert isinstance(await ask_anyone(address, "job", "", None, pretender), Sight)


async def test_a_machine_that_is_too_busy_for_a_handshake_is_there(mine: JobPapers) -> None:
    """Its kernel takes the connection; it has the time of one that is busy, not of one that is cut off."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        assert Sight.BUSY is await ask_anyone(address, "job", "", None, mine, limit_s=0.2)
    assert Sight.REFUSED is await ask_anyone(address, "job", "", None, mine, limit_s=0.2)


async def test_whoever_only_knocks_shows_no_certificate(
    mine: JobPapers, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel answers; the launcher behind it neither complains nor misses its next caller."""
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
    async with lookout(mine) as address:
        assert [Knock.OPEN] * 20 == [await knock(address, LIMIT_S) for _ in range(20)]
        assert Word("node-0") == await ask_anyone(address, "job", "", None, mine)
    assert ([], []) == (problems, caplog.records)


async def test_a_lookout_takes_up_renewed_certificates(
    tmp_path: Path, signer: Issued, mine: JobPapers
) -> None:
    """Also a new authority; one that is trusted no more is not let in."""
    successor = authority()
    async with lookout(mine) as address:
        show(Path(mine.directory), leaf(successor, MINE), [successor])

        assert Word("node-0") == await ask_anyone(address, "job", "", None, mine)
        old = outdated(tmp_path, signer, successor)
        assert isinstance(await ask_anyone(address, "job", "", None, old), Sight)
