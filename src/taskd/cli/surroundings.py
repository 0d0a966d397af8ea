"""What ``taskd run`` takes from the pod that it runs in, for the flags that were not given.

The pod's environment goes where flags go, so there is one set of rules for both, and a complaint names the
variable. Who arranges the nodes by hand (``--standalone``, ``--local-nodes``, a rendezvous) means it: then
nothing is taken.
"""

from collections.abc import Mapping
from dataclasses import replace

from taskd.cli.errors import FlagError
from taskd.cli.flagtable import Given
from taskd.core.hccl import VariableError
from taskd.core.launch import DEFAULT_MANAGER_PORT, LaunchSpec
from taskd.core.podplace import PodPlace, read_pod

STRATEGIES = "TASKD_RECOVER_STRATEGY"
BY_HAND = ("standalone", "local-nodes", "rdzv-backend", "rdzv-endpoint")


def look_around(given: Given, env: Mapping[str, str], hostname: str) -> tuple[Given, PodPlace | None]:
    """Add what a pod of an AscendJob says about itself, if this is one and the user has not arranged it."""
    try:
        facts = read_pod(env, hostname, counted=given.has("nnodes"))
    except VariableError as error:
        raise FlagError(str(error)) from error
    if facts is None or any(given.has(name) for name in BY_HAND):
        return given, None
    return replace(given, found=facts.flags), facts.place


def describe_place(spec: LaunchSpec, given: Given) -> str:
    """Say in one line what was taken from where."""
    port = spec.manager_port or DEFAULT_MANAGER_PORT
    host = f"[{spec.master_addr}]" if ":" in spec.master_addr else spec.master_addr
    parts = [
        _part(given, f"node {spec.node_rank}", "node-rank"),
        _part(given, f"of {spec.max_nodes}", "nnodes"),
        _part(given, f"{spec.local_world} processes each", "nproc-per-node"),
        _part(given, f"manager at {host}:{port}", "master-addr"),
        _part(given, f"job {spec.job}", "job"),
    ]
    strategies = ",".join(spec.recover_strategies)
    if strategies:
        parts.append(f"strategies {strategies} ({_origin_of_strategies(given)})")
    standby = "standby for " if spec.pod is not None and spec.pod.spare else ""
    return f"in a pod: {standby}{', '.join(parts)}"


def _origin_of_strategies(given: Given) -> str:
    listed = given.env.get(STRATEGIES, "").strip()
    return given.origin("recover-strategy") or (STRATEGIES if listed else "HIGH_AVAILABILITY")


def _part(given: Given, what: str, name: str) -> str:
    origin = given.origin(name)
    return f"{what} ({origin})" if origin else what
