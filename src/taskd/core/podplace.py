"""A pod's place in its job, read from the environment that the operator gives to its container.

``taskd run script.py`` in a pod needs no flags: number of nodes, rank, processes and the leader's address are
there already, under the names that images made for the reference system know. Three things are not, so our
own operator adds them. ``TASKD_NODES``, because the number of pods cannot be divided out of sizes where the
leader has fewer devices than the workers. ``TASKD_PEERS``, the host names of all pods, because the leader's
address leads to whoever has rank 0 now, and the job may be managed elsewhere by then. ``TASKD_LEADER``, that
address once more, because the guides' script puts the pod's own in its place wherever the rank is 0.

Pods are told by their ranks; a standby pod has the rank of the pod that it may replace, and another name.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from taskd.core.hccl import VariableError

JOB_ID: Final = "MINDX_TASK_ID"
NODES: Final = "TASKD_NODES"
PEERS: Final = "TASKD_PEERS"
RANK: Final = "RANK"
LEADER: Final = "MASTER_ADDR"
LEADER_SERVICE: Final = "TASKD_LEADER"
LOCAL_WORLD: Final = "LOCAL_WORLD_SIZE"
WORLD: Final = "WORLD_SIZE"
ADDRESS: Final = "POD_IP"
MANAGER_PORT: Final = "TASKD_MANAGER_PORT"
SPARE: Final = "TASKD_SPARE_POD"
REACH: Final = "TASKD_REACH_S"
DEFAULT_REACH_S: Final = 1.5
LEAST_REACH_S: Final = 1.0
STANDBY_NODE: Final = "standby-"
"""What the nodes of pods that began as standbys are called in a job, before the pod's host name."""
_HOST_NAME: Final = 63
_TYPE: Final = "REPLICA_TYPE"
_IN_TORCHRUN: Final = "TORCHELASTIC_RUN_ID"
_RANGE: Final = re.compile(r"(.*)\[(\d{1,5})-(\d{1,5})\](.*)")
_MOST_PEERS: Final = 20_000


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where a launcher finds the others of its job, and whether it stands by for one of them.

    ``peers`` are the host names of all pods in the order of their ranks; none where pods have no names. A pod
    that is not heard for ``reach_s``, and whose machine does not answer either, is given up; 0: it is not.
    """

    address: str = ""
    name: str = ""
    peers: tuple[str, ...] = ()
    spare: bool = False
    reach_s: float = DEFAULT_REACH_S


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What a pod's environment says: texts for flags that were not given, by flag, each with its variable."""

    place: PodPlace
    flags: Mapping[str, tuple[str, str]]


def read_pod(env: Mapping[str, str], hostname: str, *, counted: bool = False) -> PodFacts | None:
    """Read the environment of an AscendJob's pod; None where this is none.

    Raises VariableError; not about the number of pods where the user has ``counted`` them. Inside of a
    training process the same names mean a process and not a pod, so that is none either.
    """
    if _IN_TORCHRUN in env or not all(env.get(name, "").strip() for name in (JOB_ID, LEADER, RANK, _TYPE)):
        return None
    peers = parse_peers(env.get(PEERS, ""))
    flags = {
        "node-rank": (env[RANK], RANK),
        "master-addr": (env[LEADER], LEADER),
        "job": (env[JOB_ID], JOB_ID),
    }
    if not counted and (nodes := _nodes(env)):
        flags["nnodes"] = nodes
    for flag, variable in (("nproc-per-node", LOCAL_WORLD), ("manager-port", MANAGER_PORT)):
        if env.get(variable, "").strip():
            flags[flag] = (env[variable], variable)
    rank = env[RANK].strip()
    own = peers[int(rank)] if rank.isdecimal() and int(rank) < len(peers) else ""
    standing_by = bool(own) and hostname.partition(".")[0] != own.partition(".")[0]
    spare = env.get(SPARE, "") == "1" or standing_by
    place = PodPlace(env.get(ADDRESS, "").strip(), hostname, peers, spare, _reach_s(env))
    return PodFacts(place, flags)


def leader_host(env: Mapping[str, str]) -> str:
    """Where whoever has rank 0 now is found, also where a script has written this pod's address over it."""
    return env.get(LEADER_SERVICE, "").strip() or env.get(LEADER, "").strip()


def standby_node(host: str) -> str:
    """How the node of a standby pod is called in its job."""
    return f"{STANDBY_NODE}{host.partition('.')[0]}"


def host_of(pod: str) -> str:
    """The host name of a pod: a kubelet cuts names that are too long for one."""
    return pod[:_HOST_NAME].rstrip("-.")


def is_host_of(host: str, pod: str) -> bool:
    """Tell whether that is the host name of a pod, or its name."""
    return host in (pod, host_of(pod))


def _reach_s(env: Mapping[str, str]) -> float:
    text = env.get(REACH, "").strip()
    if not text:
        return DEFAULT_REACH_S
    found = float(text) if re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text) else -1.0
    if found and not found >= LEAST_REACH_S:
        rule = (
            f"give seconds from {LEAST_REACH_S:g} on, or 0 to wait for as long as for any other sign of life"
        )
        raise VariableError(REACH, text, rule)
    return found


def _nodes(env: Mapping[str, str]) -> tuple[str, str] | None:
    """How many pods the job has: what our operator says, else what the reference operator's sizes say."""
    if env.get(NODES, "").strip():
        return env[NODES], NODES
    total, local = env.get(WORLD, "").strip(), env.get(LOCAL_WORLD, "").strip()
    if not total or not local:
        return None
    if not (total.isdecimal() and local.isdecimal() and int(local) and not int(total) % int(local)):
        rule = (
            f"it cannot be divided into pods of {LOCAL_WORLD}={local}; say how many pods there are (--nnodes)"
        )
        raise VariableError(WORLD, total, rule)
    return str(int(total) // int(local)), f"{WORLD}/{LOCAL_WORLD}"


def parse_peers(text: str) -> tuple[str, ...]:
    """Spell out a list of host names, in which ``a-[0-2].b`` stands for three of them."""
    return tuple(name for part in text.split(",") if part.strip() for name in _spell_out(part.strip(), text))


def _spell_out(part: str, text: str) -> Iterator[str]:
    found = _RANGE.fullmatch(part)
    if found is None:
        yield part
        return
    before, low, high, after = found.groups()
    if not int(low) <= int(high) < _MOST_PEERS:
        raise VariableError(PEERS, text, f"[{low}-{high}] is no range")
    for number in range(int(low), int(high) + 1):
        yield f"{before}{number}{after}"


def format_peers(names: list[str]) -> str:
    """Write host names the short way: those that differ in a number that counts up become one entry."""
    runs: list[tuple[str, int, int, str]] = []
    for name in names:
        found = re.fullmatch(r"(.*-)(\d+)(\..*|)", name)
        before, number, after = (found[1], int(found[2]), found[3]) if found else (name, -1, "")
        if runs and number >= 0 and (before, number - 1, after) == (runs[-1][0], runs[-1][2], runs[-1][3]):
            runs[-1] = (before, runs[-1][1], number, after)
        else:
            runs.append((before, number, number, after))
    return ",".join(
        before if low < 0 else f"{before}{low}{after}" if low == high else f"{before}[{low}-{high}]{after}"
        for before, low, high, after in runs
    )
