"""What a proxy must know."""

from dataclasses import dataclass, field

from taskd.core.succession import STEADY, Candidate, Pace, Term
from taskd.kit.papers import JobPapers


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The proxy's settings. A manager of an earlier ``term`` than this one is not obeyed.

    ``standby`` is where the launcher could host a manager itself; the roster is then kept in a file.
    """

    job: str
    node: str
    manager: str
    socket: str
    token: str = ""
    papers: JobPapers = field(default_factory=JobPapers)
    log_file: str = ""
    term: Term = field(default_factory=Term)
    standby: Candidate | None = None
    roster_file: str = ""
    pace: Pace = STEADY
