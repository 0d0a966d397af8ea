"""What a manager must know, from the launcher or from a user's manager.py."""

from dataclasses import dataclass, field

from taskd.core.launch import DEFAULT_MANAGER_PORT, LOCAL_HOST, JobOptions, ScheduledFault
from taskd.core.succession import STEADY, Pace, Roster, Term
from taskd.kit.papers import JobPapers

# Longer than a launcher needs to replace a proxy that hangs: the node behind it is well.
NODE_LOST_S = 15.0


@dataclass(frozen=True, slots=True)
class Succession:
    """The term of a manager of several machines, and the roster that its launcher knew.

    ``elected`` is False for one that takes over from another machine. The nodes ``lost`` are not expected
    then; they were missed at ``lost_at``, by the clock of this machine.
    """

    home: str
    term: Term
    roster: Roster
    elected: bool = True
    lost: tuple[str, ...] = ()
    lost_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """The manager's settings.

    A manager.py knows how many nodes there are and nothing else, so with ``adopt_options`` the rest comes
    from the first launcher that announces itself. A node that is silent for ``reach_s``, and whose machine
    does not answer either, is given up (0: it is not); one whose machine answers, after ``node_lost_s``.
    """

    job: str
    options: JobOptions
    host: str = LOCAL_HOST
    port: int = DEFAULT_MANAGER_PORT
    token: str = ""
    papers: JobPapers = field(default_factory=JobPapers)
    log_file: str = ""
    metrics_port: int = 0
    adopt_options: bool = False
    port_reserved: bool = False
    node_lost_s: float = NODE_LOST_S
    reach_s: float = 0.0
    pace: Pace = STEADY
    faults: tuple[ScheduledFault, ...] = field(default_factory=tuple)
    succession: Succession | None = None
