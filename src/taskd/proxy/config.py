"""What a proxy must know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """What a proxy must know."""

    job: str
    node: str
    manager: str
    socket: str
    token: str = ""
    log_file: str = ""
