"""Small questions to this machine."""

import secrets
import shutil
import socket
from pathlib import Path


def boot_id() -> str:
    """Return the name of this run of this machine: monotonic clocks compare only within it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return secrets.token_hex(8)


def find_free_port(host: str) -> int:
    """Find a port that is free now; 0 if the host is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return 0
        port: int = probe.getsockname()[1]
        return port


def is_port_free(host: str, port: int) -> bool:
    """Tell whether somebody could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # A port whose last connections are fading out is free for a server.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def reserve_port(host: str, port: int) -> socket.socket | None:
    """Hold a port for one's children while none of them listens there; None if somebody has it.

    The bind is exclusive; only then is sharing allowed, and only a socket that asks for it (SO_REUSEPORT, the
    same user) may bind there too. So a manager can be replaced without another job taking its port meanwhile.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        # For the bind alone: a port whose last connections are fading out is free.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        holder.close()
        return None
    return holder


def is_paused(pid: int) -> bool:
    """Tell whether a process was stopped, by a signal or by a debugger."""
    return _process_state(pid) in (b"T", b"t")


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped by a signal; one that a debugger holds is not meant."""
    return _process_state(pid) == b"T"


def _process_state(pid: int) -> bytes:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return b""
    at = stat.rfind(b")") + 2
    return stat[at : at + 1]


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it; what is gone already is no error."""
    if path:
        shutil.rmtree(path, ignore_errors=True)
