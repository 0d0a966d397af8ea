"""What a proxy must know."""

from dataclasses import dataclass, field

from taskd.core.succession import STEADY, Candidate, Pace, Term


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
    log_file: str = ""
    term: Term = field(default_factory=Term)
    standby: Candidate | None = None
    roster_file: str = ""
    pace: Pace = STEADY
