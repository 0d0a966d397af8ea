"""Certificates as a kubelet shows them: a directory of links that is moved at once when they are renewed."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path

from taskd.core.certificates import CA, CERTIFICATE, KEY
from taskd.kit.issuing import Issued, issue, make_authority
from taskd.kit.papers import JobPapers

DAY_S = 86_400.0
_numbers = itertools.count()


def authority() -> Issued:
    """One that has been there for a year, so that something may have ended by now."""
    return make_authority(time.time() - 365 * DAY_S, 730 * DAY_S)


def leaf(signer: Issued, *names: str, age_s: float = 0.0, server: bool = False) -> Issued:
    """A certificate that was made so long ago, and holds for a month."""
    return issue(signer, names, time.time() - age_s, 30 * DAY_S, server=server)


def show(directory: Path, shown: Issued, trusted: Sequence[Issued]) -> None:
    """Put them there, or others in the place of those that are there."""
    directory.mkdir(exist_ok=True)
    version = directory / f"..{next(_numbers)}"
    version.mkdir()
    (version / CA).write_bytes(b"".join(each.certificate for each in trusted))
    (version / CERTIFICATE).write_bytes(shown.certificate)
    (version / KEY).write_bytes(shown.key)
    (version / KEY).chmod(0o400)
    fresh = directory / "..data_tmp"
    fresh.symlink_to(version.name)
    os.replace(fresh, directory / "..data")  # noqa: PTH105 - as the kubelet does it
    for name in (CA, CERTIFICATE, KEY):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


def job_papers(directory: Path, signer: Issued, identity: str, *, age_s: float = 0.0) -> JobPapers:
    """A job's certificates in a directory."""
    show(directory, leaf(signer, identity, age_s=age_s), [signer])
    return JobPapers(str(directory), identity)
