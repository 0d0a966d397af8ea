"""TLS for plain sockets inside of a job: both sides show the job's certificate.

The certificate is renewed while the job runs, and a launcher may be asked once a month. So whoever answers
reads the files anew for each caller, at the moment when the caller says whom it wants to speak with.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from taskd.core.certificates import CA, CERTIFICATE, KEY
from taskd.kit.papers import JobPapers, PapersError, issue_behind

_TRIES = 3


def answering_context(papers: JobPapers) -> ssl.SSLContext:
    """For the side that answers; PapersError where there are no certificates to begin with."""

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLSocket) -> None:
        try:
            connection.context = _load(ssl.PROTOCOL_TLS_SERVER, papers)
        except PapersError:
            return  # those from the beginning, then: whether they still hold is for the caller to say

    context = _load(ssl.PROTOCOL_TLS_SERVER, papers)
    context.sni_callback = renew  # type: ignore[assignment]  # asyncio's connections are SSLObjects
    return context


def asking_context(papers: JobPapers) -> ssl.SSLContext:
    """For the side that asks; the other has to be of the same job (`server_hostname` is its identity)."""
    return _load(ssl.PROTOCOL_TLS_CLIENT, papers)


def peer_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The names that the other side has proved."""
    return tuple(value for _kind, value in (certificate or {}).get("subjectAltName", ()))


def _load(protocol: ssl._SSLMethod, papers: JobPapers) -> ssl.SSLContext:
    for _ in range(_TRIES):
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        home = issue_behind(papers.directory)
        try:
            context.load_cert_chain(home / CERTIFICATE, home / KEY)
            context.load_verify_locations(home / CA)
        except (OSError, ssl.SSLError) as error:
            problem = error  # moved while it was read, or not to be read at all
        else:
            return context
    raise PapersError(f"the certificates in {papers.directory} cannot be used: {problem}") from problem
