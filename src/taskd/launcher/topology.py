"""Where the manager runs and which nodes this machine stands for."""

import os
import secrets
import socket
from dataclasses import dataclass

from taskd.core.launch import DEFAULT_MANAGER_PORT, LOCAL_HOST, LaunchSpec
from taskd.core.podplace import ADDRESS as POD_ADDRESS
from taskd.core.podplace import PodPlace, standby_node
from taskd.kit.machine import is_port_free, reserve_port


class LaunchError(Exception):
    """The job cannot be started as asked; the text says what to do."""


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node that this launcher stands for."""

    key: str
    wants_rank: int
    addr: str
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """Who is where. ``held_port`` keeps the manager's port while there is no manager to listen on it.

    ``standby_port`` is where this machine could host the manager itself, should the manager's be lost.
    """

    hosts_manager: bool
    manager_host: str
    manager_port: int
    nodes: tuple[LocalNode, ...]
    held_port: socket.socket | None = None
    standby_port: socket.socket | None = None

    @property
    def manager_addr(self) -> str:
        """Return where the proxies find the manager."""
        host = f"[{self.manager_host}]" if ":" in self.manager_host else self.manager_host
        return f"{host}:{self.manager_port}"


def decide_topology(spec: LaunchSpec) -> Topology:
    """Decide it from the flags and from what this machine is."""
    if spec.pod is not None:
        return _in_pod(spec, spec.pod)
    if spec.max_nodes == spec.local_nodes:
        return _one_machine(spec)
    if spec.rdzv_backend == "c10d":
        return _meeting_point(spec)
    return _fixed_ranks(spec)


def _one_machine(spec: LaunchSpec) -> Topology:
    host = LOCAL_HOST
    port = spec.manager_port
    held = reserve_port(host, port or DEFAULT_MANAGER_PORT)
    if held is None and port:
        raise LaunchError(f"port {port} of {host} is in use; choose another with --manager-port, or none")
    held = held or reserve_port(host, 0)
    if held is None:
        raise LaunchError(f"no port of {host} is free")
    if spec.master_port and not is_port_free(host, spec.master_port):
        raise LaunchError(f"port {spec.master_port} is in use; choose another with --master-port")
    nodes = tuple(LocalNode(str(rank), rank, host) for rank in range(spec.local_nodes))
    nodes += tuple(LocalNode(f"spare{n}", -1, host, spare=True) for n in range(spec.spare_nodes))
    return Topology(True, host, held.getsockname()[1], nodes, held)


def _fixed_ranks(spec: LaunchSpec) -> Topology:
    rank = spec.node_rank
    port = spec.manager_port or DEFAULT_MANAGER_PORT
    host = _upstream(spec.master_addr)
    hosts = rank == 0
    held = None
    if hosts:
        host = os.environ.get("POD_IP") or _resolve(spec.master_addr)
        held = reserve_port(host, port)
        if held is None:
            raise LaunchError(
                f"the manager cannot listen on {host}:{port}; free that port, or choose another with "
                "--manager-port on every node"
            )
        if spec.master_port and not is_port_free(host, spec.master_port):
            raise LaunchError(f"port {spec.master_port} of {host} is in use; choose another --master-port")
    addr = spec.local_addr or (_resolve(spec.master_addr) if hosts else own_address(spec.master_addr))
    return Topology(
        hosts, host, port, (LocalNode(str(rank), rank, addr),), held, held or _standby(addr, host, port)
    )


def _in_pod(spec: LaunchSpec, pod: PodPlace) -> Topology:
    """Decide for a pod: it has an address of its own, and the manager begins in that of rank 0.

    The leader's name is not resolved here: it may not exist yet, or still lead to a pod that is gone. Whoever
    connects resolves it, each time anew.
    """
    port = spec.manager_port or DEFAULT_MANAGER_PORT
    addr = spec.local_addr or pod.address or _resolve(pod.name)
    hosts = spec.node_rank == 0 and not pod.spare
    held = reserve_port(addr, port)
    if held is None and hosts:
        raise LaunchError(
            f"the manager cannot listen on {addr}:{port}: the port is in use, or {POD_ADDRESS} is not this "
            "pod's address; choose another with --manager-port in every pod, or correct it"
        )
    sidecar = os.environ.get("LOCAL_PROXY_ENABLE") == "on"
    upstream = LOCAL_HOST if sidecar else spec.master_addr
    node = LocalNode(str(spec.node_rank), spec.node_rank, addr)
    if pod.spare:
        node = LocalNode(standby_node(pod.name), -1, addr, spare=True)
    standby = None if sidecar and not hosts else held or reserve_port(addr, 0)
    return Topology(hosts, addr if hosts else upstream, port, (node,), held, standby)


def _meeting_point(spec: LaunchSpec) -> Topology:
    """Decide for a c10d rendezvous: whoever is at the endpoint hosts the manager; the first one wins."""
    endpoint = spec.rdzv_endpoint.rsplit(":", 1)[0].strip("[]") or LOCAL_HOST
    port = spec.manager_port or DEFAULT_MANAGER_PORT
    here = spec.rdzv_is_host if spec.rdzv_is_host is not None else _is_here(endpoint)
    host = _resolve(endpoint)
    addr = spec.local_addr or (host if here else own_address(endpoint))
    held = reserve_port(host, port) if here else None
    node = LocalNode(secrets.token_hex(4), -1, addr)
    return Topology(held is not None, host, port, (node,), held, held or _standby(addr, host, port))


def _standby(addr: str, manager_host: str, port: int) -> socket.socket | None:
    """Hold a port for a manager that may have to run here one day; the same as everywhere if it is free.

    Not where the first manager will be: its launcher may come later, and would find its port taken.
    """
    if os.environ.get("LOCAL_PROXY_ENABLE") == "on":
        return None  # nodes reach each other only through what stands in between
    host = os.environ.get("POD_IP") or addr
    own = reserve_port(host, port) if host != manager_host else None
    return own or reserve_port(host, 0)


def _upstream(address: str) -> str:
    """Return where to look for a manager elsewhere; a TLS sidecar stands on this machine."""
    return LOCAL_HOST if os.environ.get("LOCAL_PROXY_ENABLE") == "on" else _resolve(address)


def _resolve(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise LaunchError(f"the address {name} cannot be resolved: {error}; check --master-addr") from error


def own_address(towards: str) -> str:
    """Return the address with which this machine speaks to another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_resolve(towards), 9))  # a datagram socket sends nothing here
            return str(probe.getsockname()[0])
        except OSError:
            return LOCAL_HOST


def _is_here(host: str) -> bool:
    """Tell whether an address is one of this machine's."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((_resolve(host), 0))
        except OSError:
            return False
        return True
