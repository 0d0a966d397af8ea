"""``init_taskd_proxy`` and ``destroy_taskd_proxy``: a proxy from a user's script.

The dictionary is the reference system's. ``UpstreamAddr`` and ``UpstreamPort`` say where the manager is;
a name will do as well as an IP address. Inside a container TaskD uses a unix socket, so ``ListenPort`` opens
no port: it names the socket (``<temporary directory>/taskd-<uid>-<ListenPort>/proxy.sock``), and agents and
workers that are given the same number find it. ``ListenAddr`` is checked and not used.

The call returns when the socket is there, at most five seconds later. It does not wait for the manager: the
proxy keeps trying for as long as the calling process lives.
"""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict

from taskd.core.launch import DEFAULT_MANAGER_PORT, LOCAL_HOST
from taskd.kit.container import DEFAULT_LISTEN_PORT, job_name, role_log, socket_path
from taskd.kit.dictconfig import (
    DictConfigError,
    Kinds,
    get,
    join_address,
    parse_address,
    parse_port,
    parse_rank,
    read_dict,
)
from taskd.kit.papers import PapersError, find_papers
from taskd.kit.sidecar import sidecar
from taskd.proxy.config import ProxyConfig

INIT = "init_taskd_proxy"

KINDS: Kinds = dict.fromkeys(("UpstreamAddr", "UpstreamPort", "ListenAddr", "ListenPort", "ServerRank"), str)

log = logging.getLogger("taskd")


def parse_proxy_config(raw: object, env: Mapping[str, str]) -> ProxyConfig:
    """Read the caller's dictionary and what the environment adds to it."""
    values = read_dict(INIT, raw, KINDS)
    default_port = env.get("TASKD_MANAGER_PORT", "").strip() or str(DEFAULT_MANAGER_PORT)
    rank = env.get("RANK") or env.get("MS_NODE_RANK") or "0"
    host = parse_address(INIT, "UpstreamAddr", get(values, "UpstreamAddr", str, LOCAL_HOST))
    port = parse_port(INIT, "UpstreamPort", get(values, "UpstreamPort", str, default_port))
    parse_address(INIT, "ListenAddr", get(values, "ListenAddr", str, LOCAL_HOST))
    listen = parse_port(INIT, "ListenPort", get(values, "ListenPort", str, DEFAULT_LISTEN_PORT))
    node = parse_rank(INIT, "ServerRank", get(values, "ServerRank", str, rank))
    if env.get("LOCAL_PROXY_ENABLE") == "on":
        host = LOCAL_HOST  # a sidecar on this machine speaks TLS to the manager
    return ProxyConfig(
        job=job_name(env),
        node=str(node),
        manager=join_address(host, port),
        socket=socket_path(str(listen)),
        token=env.get("TASKD_TOKEN", ""),
        papers=find_papers(env),
    )


def init_taskd_proxy(config: dict[str, object]) -> bool:
    """Start this process's proxy; False, and a line in the log, if that is not possible.

    The second call changes nothing and is fine.
    """
    try:
        wanted = parse_proxy_config(config, os.environ)
        if sidecar.wanted:
            log.info("%s: this process has a proxy already; nothing was changed", INIT)
            return True
        record = role_log(f"taskd-proxy-{wanted.node}-{int(time.time())}.log", os.environ)
        problem = sidecar.start(
            {
                "job": wanted.job,
                "node": wanted.node,
                "manager": wanted.manager,
                "socket": wanted.socket,
                "token": wanted.token,
                "papers": asdict(wanted.papers),
                "log_file": record,
            }
        )
    except (DictConfigError, OSError, PapersError) as error:
        problem = str(error)
    if problem:
        log.error("%s", problem if problem.startswith(INIT) else f"{INIT}: {problem}")
    return not problem


def destroy_taskd_proxy() -> bool:
    """End this process's proxy; having none is fine too."""
    sidecar.end()
    return True
