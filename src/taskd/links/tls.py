"""TLS for gRPC: both sides show certificates, and renewed ones are taken up without a restart.

A connection lives on with the certificates that it began with; the next one is made with those of then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from taskd.kit.papers import JobPapers, Papers, PapersError, read_papers

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


def job_channel_options(papers: JobPapers) -> list[tuple[str, Any]]:
    """Have the other side prove that it is of the same job, whatever its address."""
    return [("grpc.ssl_target_name_override", papers.identity)]


def identities(proofs: Mapping[str, Iterable[bytes]] | None) -> tuple[str, ...]:
    """The names that the other side's certificate proves, from gRPC's authentication context."""
    known = proofs or {}
    found = [*known.get("x509_subject_alternative_name", ()), *known.get("x509_common_name", ())]
    return tuple(name.decode(errors="replace") for name in found)


def _configuration(papers: Papers) -> Any:  # noqa: ANN401 - grpc's own kind
    pairs = [(papers.key, papers.certificate)]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=papers.ca)
