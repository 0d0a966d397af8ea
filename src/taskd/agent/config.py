"""What an agent must know."""

from dataclasses import dataclass

from taskd.core.launch import LaunchSpec


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent's settings, made by the launcher."""

    spec: LaunchSpec
    node: str
    wants_rank: int
    addr: str
    socket: str
    shm_dir: str
    tmp_dir: str
    logs_dir: str
    fired_dir: str
    ledger_file: str
    log_file: str = ""
    own_tmp: bool = False
    warm: str = ""
    spare: bool = False
    dump_dir: str = ""
