"""Certificates as files: where a job's are, and reading them so that the three belong together.

A Secret is shown in a pod as a directory of links that the kubelet moves at once, behind the reader's back.
Whoever reads the three files one after the other may get a certificate of one issue and the key of the next;
so the directory behind the links is found first, and read whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from taskd.core.certificates import CA, CERTIFICATE, KEY, VARIABLE

_KUBELETS = "..data"
_TRIES = 3


class PapersError(ValueError):
    """Certificates that are named cannot be used."""


@dataclass(frozen=True, slots=True)
class Papers:
    """What one side shows (certificate and key), and whom it trusts; as PEM. Keys show in no log."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class JobPapers:
    """Where a job's certificates are, and the name of the job in them."""

    directory: str = ""
    identity: str = ""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.directory)


NO_PAPERS = JobPapers()


def find_papers(environ: Mapping[str, str]) -> JobPapers:
    """Read from the environment where this job's certificates are; nowhere, as a rule, outside of a cluster.

    Where a program in the pod passes connections on (LOCAL_PROXY_ENABLE), that one has them.
    """
    directory = environ.get(VARIABLE, "").strip()
    if not directory or environ.get("LOCAL_PROXY_ENABLE") == "on":
        return JobPapers()
    identity = environ.get("MINDX_TASK_ID", "").strip()
    if not identity:
        raise PapersError(
            f"{VARIABLE} is set and MINDX_TASK_ID is not: whose certificates they are is unknown"
        )
    return JobPapers(directory, identity)


def issue_behind(directory: str) -> Path:
    """The directory that has the files of one issue, behind the links of the kubelet."""
    shown = Path(directory) / _KUBELETS
    return Path(os.path.realpath(shown)) if shown.is_dir() else Path(directory)


def read_papers(directory: str) -> Papers:
    """Read the three files; PapersError says which one cannot be read, and why."""
    for _ in range(_TRIES):
        home = issue_behind(directory)
        try:
            return Papers(*((home / name).read_bytes() for name in (CA, CERTIFICATE, KEY)))
        except FileNotFoundError as error:
            problem: OSError = error  # moved while it was read, or not there at all
        except OSError as error:
            problem = error
            break
    hint = ""
    if isinstance(problem, PermissionError):
        hint = "; give the pod an fsGroup, or let the container run as the files' owner"
    raise PapersError(f"the certificates cannot be read: {problem}{hint}") from problem
