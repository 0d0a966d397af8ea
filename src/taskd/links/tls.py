"""TLS for gRPC: both sides show certificates, and renewed ones are taken up without a restart.

A connection lives on with the certificates that it began with; the next one is made with those of then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import grpc.aio

from taskd.kit.papers import JobPapers, Papers, PapersError, read_papers

EXPLAIN_S = 0.5
EXPLAIN_LENGTH = 300

Current = Callable[[], Papers]
"""Gives the certificates as they are now; may raise PapersError."""


def server_credentials(current: Current) -> grpc.ServerCredentials:
    """Credentials of a server; every handshake uses what is current then. Callers must show a certificate."""
    first = current()
    shown = first

    def fetch() -> Any:  # noqa: ANN401 - grpc's own kind, or None for "as before"
        nonlocal shown
        try:
            now = current()
        except PapersError:
            return None
        if now == shown:
            return None
        shown = now
        return _configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(first), fetch, require_client_authentication=True
    )


def channel_credentials(papers: Papers) -> grpc.ChannelCredentials:
    """Credentials of one connection."""
    return grpc.ssl_channel_credentials(papers.ca, papers.key or None, papers.certificate or None)


def from_directory(directory: str) -> Current:
    """Certificates in a directory; read again when a connection is made."""
    return lambda: read_papers(directory)


@contextlib.asynccontextmanager
async def open_channel(
    address: str,
    papers: Papers | None,
    timeout_s: float,
    options: Sequence[tuple[str, Any]],
    *,
    name: str = "",
) -> AsyncIterator[grpc.aio.Channel]:
    """Connect; ConnectionError says why not. The other side has to answer to `name`, or to the address."""
    if papers is None:
        channel = grpc.aio.insecure_channel(address, options=options)
    else:
        named = [*options, ("grpc.ssl_target_name_override", name)] if name else options
        channel = grpc.aio.secure_channel(address, channel_credentials(papers), options=named)
    async with channel:
        try:
            async with asyncio.timeout(timeout_s):
                await channel.channel_ready()
        except TimeoutError as error:
            why = f": {await _explain(channel)}" if papers is not None else ""
            raise ConnectionRefusedError(f"nobody answers at {address}{why}") from error
        yield channel


async def _explain(channel: grpc.aio.Channel) -> str:
    """Say why a connection does not come about: only a call that fails is told so."""
    call: Any = channel.unary_unary("/taskd/Nothing")
    try:
        await call(b"", timeout=EXPLAIN_S)
    except grpc.aio.AioRpcError as error:
        return " ".join((error.details() or "").split())[:EXPLAIN_LENGTH]
    return ""


def is_of_job(papers: JobPapers, proofs: Mapping[str, Iterable[bytes]] | None) -> bool:
    """Whether the other side's certificate is that of the same job."""
    return papers.identity in identities(proofs)


def identities(proofs: Mapping[str, Iterable[bytes]] | None) -> tuple[str, ...]:
    """The names that the other side's certificate proves, from gRPC's authentication context."""
    known = proofs or {}
    found = [*known.get("x509_subject_alternative_name", ()), *known.get("x509_common_name", ())]
    return tuple(name.decode(errors="replace") for name in found)


def _configuration(papers: Papers) -> Any:  # noqa: ANN401 - grpc's own kind
    pairs = [(papers.key, papers.certificate)]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=papers.ca)
