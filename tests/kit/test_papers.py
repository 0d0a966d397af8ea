"""Certificates in files: where they are looked for, and that what is read belongs together."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from taskd.core.certificates import VARIABLE
from taskd.kit.issuing import (
    Issued,
    UnreadableCertificate,
    issue,
    make_authority,
    read_certificates,
    read_pair,
)
from taskd.kit.papers import NO_PAPERS, JobPapers, Papers, PapersError, find_papers, read_papers
from tests.links.papers import authority, leaf, show

NOW = 1_800_000_000.0
DAY_S = 86_400.0


def test_where_a_jobs_certificates_are() -> None:
    """The operator says it in the pod's environment; who passes connections on has them itself."""
    env = {VARIABLE: "/user/taskd/certificates", "MINDX_TASK_ID": "u-1"}

    assert JobPapers("/user/taskd/certificates", "u-1") == find_papers(env)
    assert NO_PAPERS == find_papers({})
    assert NO_PAPERS == find_papers({**env, "LOCAL_PROXY_ENABLE": "on"})
    with pytest.raises(PapersError, match="MINDX_TASK_ID"):
        find_papers({VARIABLE: "/user/taskd/certificates"})


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """Whoever has to put it there knows which."""
    (tmp_path / "ca.crt").touch()

    with pytest.raises(PapersError, match=r"tls\.crt"):
        read_papers(str(tmp_path))


def test_plain_files_will_do(tmp_path: Path) -> None:
    """A directory that no kubelet made."""
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).write_text(name)

    assert Papers(b"ca.crt", b"tls.crt", b"tls.key") == read_papers(str(tmp_path))


def test_certificate_and_key_are_of_one_issue(tmp_path: Path) -> None:
    """Read again and again while they are exchanged, and never one of the one with the other's key."""
    signer = authority()
    issues = [leaf(signer, f"u-{number}") for number in range(3)]
    show(tmp_path, issues[0], [signer])
    over = threading.Event()

    def exchange() -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            show(tmp_path, issues[turn % 3], [signer])

    mover = threading.Thread(target=exchange)
    mover.start()
    try:
        for _ in range(300):
            found = read_papers(str(tmp_path))
            read_pair(found.certificate, found.key)
    finally:
        over.set()
        mover.join()


def test_keys_show_in_no_text() -> None:
    """Whatever writes these into a log writes no key."""
    made = make_authority(NOW, DAY_S)
    papers = Papers(made.certificate, made.certificate, made.key)

    for thing in (made, papers):
        assert "PRIVATE" not in repr(thing)
        assert "PRIVATE" not in str(thing)


def test_what_is_made_reads_as_it_was_asked_for() -> None:
    """Names, dates, who signed, and that it may not sign itself."""
    signer = make_authority(NOW, 100 * DAY_S)
    ((above, _pem),) = read_certificates(signer.certificate)
    made = issue(signer, ("u-1", "10.96.0.9", "::1"), NOW, 30 * DAY_S, server=False)
    facts = read_pair(made.certificate, made.key)

    assert above.authority
    assert not facts.authority
    assert ("u-1", "10.96.0.9", "::1") == facts.names
    assert above.key == facts.signed_by
    assert NOW + 30 * DAY_S == facts.ends
    assert above.ends == read_pair(*pair(issue(signer, ("u-1",), NOW, 999 * DAY_S, server=False))).ends


def test_a_key_of_another_certificate_is_noticed() -> None:
    """And text that is none."""
    one, other = make_authority(NOW, DAY_S), make_authority(NOW, DAY_S)

    for certificate, key in ((one.certificate, other.key), (b"", one.key), (one.certificate, b"nonsense")):
        with pytest.raises(UnreadableCertificate) as caught:
            read_pair(certificate, key)
        assert "PRIVATE" not in str(caught.value)
    with pytest.raises(UnreadableCertificate):
        read_certificates(b"nonsense")


def pair(made: Issued) -> tuple[bytes, bytes]:
    return made.certificate, made.key
