"""``init_taskd_manager`` and ``start_taskd_manager``: a manager from a user's manager.py.

The dictionary is the reference system's; see the table of keys below. Three of its habits are not kept: the
caller's dictionary is never changed, a second configuration is refused instead of silently dropped, and a
port that is taken is a False instead of a manager that nobody can reach.

Two variables of the reference system's environment deserve a word. ``TASKD_PROCESS_ENABLE=off`` does not
turn the manager off there, because agents wait for it; it turns off process-level recovery and the orders of
the cluster's control plane. It is read the same way here: the manager starts the job and restarts it after a
fault as a whole. ``TASKD_PROCESS_INTERVAL`` is the period of a polling loop that this manager does not have;
any value is accepted and changes nothing.

Where MindIO's package is installed, its controller runs beside the manager (``manager.ttp``). In a pod that
stands by for rank 0's, the manager waits for its turn (``manager.turn``).
"""

import ipaddress
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from taskd.core.launch import DEFAULT_MANAGER_PORT, LOCAL_HOST, JobOptions
from taskd.kit import jobs
from taskd.kit.container import job_name, role_log
from taskd.kit.dictconfig import DictConfigError, Kinds, get, parse_port, read_dict
from taskd.kit.machine import is_port_free
from taskd.kit.papers import PapersError, find_papers
from taskd.manager.config import ManagerConfig
from taskd.manager.ttp import TtpBridge, open_bridge
from taskd.manager.turn import await_turn

INIT = "init_taskd_manager"
START = "start_taskd_manager"
ON, OFF = "on", "off"

# plugin_dir and cluster_infos are accepted and unused, as in the reference system; its documentation calls
# cluster_infos a dict and its program wants a list, so both will do.
KINDS: Kinds = {
    "job_id": str,
    "node_nums": int,
    "proc_per_node": int,
    "plugin_dir": str,
    "fault_recover": str,
    "taskd_enable": str,
    "cluster_infos": (list, dict),
}

log = logging.getLogger("taskd")


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """What a manager.py says, parsed.

    ``nodes`` 0 means that the first launcher to announce itself says how many there are. How many processes
    a node has is always the launcher's word: a number typed by hand cannot be truer.
    """

    job: str
    nodes: int = 0
    ranks_per_node: int = 0
    process_recovery: bool = True
    fault_recover: bool = False

    @classmethod
    def from_legacy(cls, raw: object, env: Mapping[str, str]) -> "ManagerSettings":
        """Read the caller's dictionary and what the environment adds to it."""
        values = read_dict(INIT, raw, KINDS)
        for key in ("node_nums", "proc_per_node"):
            count = get(values, key, int, 0)
            if count < 0:
                raise DictConfigError(
                    f"{INIT}: {key} is {count}; give the real number, or 0 to leave it open"
                )
        job = get(values, "job_id", str, "").strip() or job_name(env)
        try:
            jobs.job_dir(job)
        except jobs.JobLookupError as error:
            raise DictConfigError(
                f"{INIT}: job_id is {job!r}; give a name without '/' that does not begin with a dot"
            ) from error
        return cls(
            job=job,
            nodes=get(values, "node_nums", int, 0),
            ranks_per_node=get(values, "proc_per_node", int, 0),
            process_recovery=env.get("TASKD_PROCESS_ENABLE") != OFF,
            fault_recover=env.get("PROCESS_RECOVER") == ON or bool(values.get("fault_recover")),
        )

    def to_config(self, env: Mapping[str, str]) -> ManagerConfig:
        """Make the manager's configuration; what is not known yet comes from the first launcher."""
        return ManagerConfig(
            job=self.job,
            options=JobOptions(min_nodes=self.nodes, max_nodes=self.nodes),
            host=choose_host(env),
            port=choose_port(env),
            token=env.get("TASKD_TOKEN", ""),
            papers=find_papers(env),
            adopt_options=True,
        )


def choose_host(env: Mapping[str, str]) -> str:
    """Decide where to listen: the pod's address, or loopback where a TLS sidecar or nobody is outside."""
    pod = env.get("POD_IP", "").strip()
    if env.get("LOCAL_PROXY_ENABLE") == ON or not pod:
        return LOCAL_HOST
    try:
        address = ipaddress.ip_address(pod.strip("[]"))
    except ValueError as error:
        raise DictConfigError(
            f"{START}: POD_IP is {pod!r}, not an IP address; correct or unset it"
        ) from error
    if address.is_unspecified or address.is_multicast:
        raise DictConfigError(
            f"{START}: POD_IP is {pod}, at which nobody in particular listens; give this pod's own address"
        )
    return f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004 - IPv6


def choose_port(env: Mapping[str, str]) -> int:
    """Decide the port: 9601, which pods declare, unless the environment says otherwise."""
    text = env.get("TASKD_MANAGER_PORT", "").strip()
    return parse_port(START, "TASKD_MANAGER_PORT", text) if text else DEFAULT_MANAGER_PORT


_settings: ManagerSettings | None = None
_running = False


def init_taskd_manager(config: dict[str, object]) -> bool:
    """Take the configuration of this process's manager; False, and a line in the log, if it is wrong."""
    global _settings  # noqa: PLW0603 - a process has one manager
    try:
        wanted = ManagerSettings.from_legacy(config, os.environ)
    except DictConfigError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is the whole story
        return False
    if _settings is not None and wanted != _settings:
        log.error("%s: this process has a manager for %s already; start another process", INIT, _settings)
        return False
    _settings = wanted
    return True


def start_taskd_manager() -> bool:
    """Manage the job in the calling thread until it has ended; True if it ended well."""
    global _running  # noqa: PLW0603 - a process has one manager
    if _settings is None:
        log.error("%s: there is no manager yet; call %s first and look at its answer", START, INIT)
        return False
    if _running:
        log.error("%s: the manager of this process runs already; start it once", START)
        return False
    _running = True
    bridge: TtpBridge | None = None
    try:
        await_turn(os.environ, socket.gethostname(), choose_port(os.environ))
        bridge = open_bridge(os.environ) if _settings.process_recovery else None
        return _serve(_settings.to_config(os.environ))
    except DictConfigError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is the whole story
    except (OSError, PapersError) as error:
        log.error("%s: %s", START, error)  # noqa: TRY400 - as above
    except Exception:  # A documented function does not raise.
        log.exception("%s: the manager failed", START)
    finally:
        _running = False
        if bridge is not None:
            bridge.close()
    return False


def _serve(config: ManagerConfig) -> bool:
    # Here and not above: a training script imports this module and must not load gRPC by that.
    import asyncio

    from taskd.core.exits import ExitCode
    from taskd.kit.lifeline import Lifeline
    from taskd.kit.logs import open_log
    from taskd.manager.service import serve

    if not is_port_free(config.host.strip("[]"), config.port):  # gRPC would say it on stderr, in its own way
        where = f"{config.host}:{config.port}"
        log.error(
            "%s: cannot listen on %s, which is in use or not of this machine; free the port, choose another "
            "with TASKD_MANAGER_PORT, or correct POD_IP",
            START,
            where,
        )
        return False
    record = open_log(role_log("manager.log", os.environ), role="manager", job=config.job)
    ending = asyncio.run(serve(config, record, Lifeline()))
    if ending.code != ExitCode.OK:
        log.error("%s: the job ended with code %s: %s", START, ending.code, ending.reason)
    return ending.code == ExitCode.OK
