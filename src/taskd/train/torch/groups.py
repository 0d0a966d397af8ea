"""Process groups that stay the same objects while the processes behind them change.

A script holds groups in many places: closures, a DeviceMesh, the mesh infos of FSDP, the names that
functional collectives are given. After a change of membership nobody can find and replace them all. So what
the script holds is a group of ours that passes every call on to an inner one, and the inner one is exchanged.
torch's C++ code calls a group that is written in Python as well: DDP's reducer and DTensor's collectives do.

The inner groups of a generation are made under names that all ranks agree on: the generation, and the name
that torch gives the group, which counts the groups that the script has made. All ranks make theirs in the
script's order, each at once for all its members, so none waits for one that waits for it.

A replaced process runs its script from the top, while the others stand and wait. Until it comes to its loop
it is *alone*: its groups have nobody behind them, and what its predecessor got from the others in the same
calls is read from notes (see ``notes``). So nothing that a script does before its loop holds up the others.
"""
# ruff: noqa: SLF001 - groups are registered in private maps; there is no other way to make one

import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from taskd.train.torch.devices import NAMES, Device, find
from taskd.train.torch.fence import SocketFence
from taskd.train.torch.notes import Alone, Noting, SetupNotes
from taskd.train.torch.works import COLLECTIVES, NEVER, Watching, Works

log = logging.getLogger("taskd")

_c10d = cast("Any", dist.distributed_c10d)
_dist = cast("Any", dist)  # its stores and groups are exported, but not for the type checker

_OTHERS = (
    "_add_ephemeral_timeout",
    "_end_coalescing",
    "_get_backend",
    "_get_sequence_number_for_group",
    "_set_default_timeout",
    "_set_sequence_number_for_group",
    "_start_coalescing",
    "get_backend",
    "monitored_barrier",
    "set_timeout",
)


_KNOWN = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "tags_to_pg", "pg_to_tag")


class GroupGone(RuntimeError):
    """The group's processes are changing."""

    def __init__(self) -> None:
        super().__init__("the gloo group behind this process group is gone; it is made again before a step")


class _Gone:
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - nothing comes back
        raise GroupGone


@dataclass(frozen=True, slots=True)
class Wanted:
    """What has to be made anew for each generation."""

    backends: Mapping[str, str]  # device type -> name of the backend
    timeout: timedelta
    options: object = None


class StableGroup(ProcessGroup):
    """What the script holds. ``inner`` is the group of the moment."""

    def __init__(
        self, rank: int, size: int, name: str, description: str, wanted: Wanted, calls: list[int]
    ) -> None:
        super().__init__(rank, size)
        self.inner: Any = _Gone()
        self.backends: list[tuple[Device, Any]] = []
        self.store: Any = None
        self.wanted = wanted
        self.calls = calls
        self.generation = 0
        self._taskd_name = name
        self._taskd_description = description

    # These four are asked by C++ too.

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Not gloo's own name: torch would look for gloo's parts in this very object."""
        return "taskd"

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """The name by which functional collectives find the group."""
        return self._taskd_name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """What the group is for."""
        return self._taskd_description

    def shutdown(self) -> None:
        """The script is done with the group."""
        drop([self])

    abort = shutdown

    @property
    def group_name(self) -> Any:  # noqa: ANN401 - a string under another name
        """As above, for Python."""
        return self._taskd_name

    @property
    def group_desc(self) -> str:
        """As above, for Python."""
        return self._taskd_description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in self.wanted.backends]

    def get_group_store(self) -> Any:  # noqa: ANN401 - a store
        """The store of this generation."""
        return self.store

    def _has_hooks(self) -> bool:
        return False


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: StableGroup, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signatures
        self.calls[0] += 1
        return getattr(self.inner, name)(*args, **kwargs)

    call.__name__ = name
    return call


for _name in (*COLLECTIVES, *_OTHERS):
    if hasattr(_dist.ProcessGroup, _name):
        setattr(StableGroup, _name, _passed_on(_name))


def _make_inner(group: StableGroup) -> tuple[Any, list[tuple[Device, Any]]]:
    rank, size = group.rank(), group.size()
    inner = _dist.ProcessGroup(group.store, rank, size)
    made: dict[str, Any] = {}
    for device, name in group.wanted.backends.items():
        kind = getattr(_dist.ProcessGroup.BackendType, name.upper(), _dist.ProcessGroup.BackendType.CUSTOM)
        if name not in made:
            store = _dist.PrefixStore(f"{device}/", group.store)
            wanted = group.wanted
            made[name] = find(name).make_backend(store, rank, size, wanted.timeout, wanted.options)
            if len(made) == 1:
                inner._set_default_backend(kind)
        inner._register_backend(torch.device(device), kind, made[name])
    inner._set_group_name(group.group_name)
    return inner, [(find(name), backend) for name, backend in made.items()]


def drop(groups: list[StableGroup], afterwards: Callable[[], None] = lambda: None) -> None:
    """Let the inner groups go, their backends last: see ``fence.destroy_groups`` for the deadlock.

    A backend's end waits for gloo's threads, which takes some ticks of theirs and, about once in a hundred
    cuts, very long: a thread waits for a peer that never answers. Nobody needs to wait for that with it.
    ``afterwards`` is called when one has ended.
    """
    backends = [each for group in groups for each in group.backends]
    for group in groups:
        group.backends = []
        group.inner = _Gone()
    while backends:
        # One thread each: whoever is not let go holds up nobody else's end.
        one = [backends.pop()]
        threading.Thread(target=_close, args=(one, afterwards), name="taskd-gone", daemon=True).start()


def _close(backends: list[tuple[Device, Any]], afterwards: Callable[[], None]) -> None:
    while backends:
        device, backend = backends.pop()
        device.close(backend)
        del backend
    afterwards()


# --- all groups of a process -------------------------------------------------------------------------------


class Groups:
    """The groups of a process, in the order in which its script made them."""

    def __init__(
        self, fence: SocketFence, generation: Callable[[], int], notes: SetupNotes, *, alone: bool
    ) -> None:
        """``alone`` is a replaced process's beginning; ``together`` ends it."""
        self._fence = fence
        self._works = Works()
        self._generation = generation
        self._notes = notes
        self._alone = alone
        self._setting_up = True
        self._expected = False
        self._members: list[StableGroup] = []
        self._names: list[str] = []
        self._calls = [0]
        self._world: dict[str, dict[Any, Any]] = {}
        self._default: Any = None

    @property
    def calls(self) -> int:
        """How many collectives the script and we have begun, over all groups."""
        return self._calls[0]

    @property
    def limit_s(self) -> float:
        """How long a collective of the default group may take."""
        group = _c10d._get_default_group()
        return (
            group.wanted.timeout.total_seconds() if isinstance(group, StableGroup) else NEVER.total_seconds()
        )

    @property
    def alone(self) -> bool:
        """Tell whether there is nobody behind the groups yet."""
        return self._alone

    @property
    def ours(self) -> bool:
        """Tell whether the default group is one of these."""
        return dist.is_initialized() and isinstance(_c10d._get_default_group(), StableGroup)

    @property
    def foreign(self) -> bool:
        """Tell whether there is a default group and it is not one of these."""
        return dist.is_initialized() and not self.ours

    def rendezvous(self, own: Callable[[], Iterator[Any]], rank: int, size: int) -> Iterator[Any]:
        """Meet the others for the first time, or nobody while alone."""
        self._expected = True
        if self._alone:
            yield _dist.HashStore(), rank, size
            return
        with self._fence.recording(self._generation()):
            met = next(own())
        yield met

    def takes(self, ranks: list[int], backend: str) -> bool:
        """Tell whether a group that the script makes is to be one of these."""
        wanted = self._expected if not ranks else self.ours
        if not wanted:
            return False
        unknown = set(_backends(backend).values()) - set(NAMES)
        if unknown:
            log.warning("taskd: groups of %s are not kept over a fault", ", ".join(sorted(unknown)))
        return not unknown

    def make(self, call: Mapping[str, Any]) -> tuple[Any, Any]:
        """Do what torch's helper does for a new group, with one of ours; ``call`` has its arguments."""
        ranks, name, tag = call["global_ranks_in_group"], call["group_name"], call.get("pg_tag") or ""
        self._expected = False
        world = _c10d._world
        if name in world.pg_names.values():
            raise ValueError(f"there is a group {name!r} already")
        if tag:
            existing = _c10d._find_pg_by_ranks_and_tag(tag, ranks)
            if existing:
                return existing, world.pg_map[existing][1]
        if ranks and _c10d._get_default_group().rank() not in ranks:
            return _c10d.GroupMember.NON_GROUP_MEMBER, None
        backends = _backends(call["backend"])
        if not ranks:
            backends = {"cpu": "gloo", **backends}  # the vote goes over the host, whatever the script uses
        wanted = Wanted(backends, call["timeout"], call.get("backend_options"))
        description = call.get("group_desc") or "undefined"
        group = StableGroup(call["group_rank"], call["group_size"], name, description, wanted, self._calls)
        self._names.append(name)
        group.store = self._store_of(call["store"], name)
        self._connect(group)
        self._members.append(group)
        world.pg_map[group] = (call["backend"], group.store if ranks else call["store"])
        world.pg_names[group] = name
        world.pg_backend_config[group] = str(_c10d.BackendConfig(call["backend"]))
        _c10d._register_process_group(name, group)
        own_tag = f"user:{tag}" if tag else f"ptd:{name}"
        if not tag:
            world.tags_to_pg.setdefault("", []).append(group)
        world.tags_to_pg.setdefault(own_tag, []).append(group)
        world.pg_to_tag[group] = own_tag
        return group, world.pg_map[group][1]

    def interrupt(self, before: int) -> None:
        """End whatever waits in a generation before this one; from another thread, after the fence's cut."""
        for group in list(self._members):
            for device, backend in group.backends if group.generation < before else ():
                if device.name != "gloo":  # that one the fence has cut, and holds until all are out
                    device.interrupt(backend)

    def let_go(self, before: int) -> None:
        """Let the training thread go from what gloo has forgotten; from another thread, after the cut."""
        count = self._works.let_go(before)
        if count:
            log.warning(
                "taskd: gloo has forgotten %d collectives with a peer that is gone; they are left", count
            )

    def end_overdue(self) -> None:
        """Break off what takes longer than the script allows; from another thread, now and then."""
        if self._works.is_overdue():
            log.error("taskd: a collective takes longer than its group's timeout; the connections are cut")
            self._fence.sever(self._generation())

    def leave(self) -> None:
        """Let go of all processes behind the groups."""
        stopped = {device for group in self._members for device, _ in group.backends if device.must_restart}
        drop(self._members, self._works.forget)
        for device in stopped:
            device.restart()
        self._members = [group for group in self._members if group in _c10d._world.pg_map]

    def remember(self) -> None:
        """Note what torch knows of the groups: a script destroys them when it has no more use for them."""
        self._world = {name: dict(getattr(_c10d._world, name)) for name in _KNOWN}
        self._default = _c10d._world.default_pg

    def revive(self) -> None:
        """Bring the groups back that a script destroyed at its end, if others need this rank once more."""
        if dist.is_initialized() or self._default is None:
            return
        for name, known in self._world.items():
            getattr(_c10d._world, name).update(known)
        for group in self._members:
            _c10d._register_process_group(group.group_name, group)
        _c10d._update_default_pg(self._default)

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Build wrappers in this block, between two generations: what they ask the others is answered here.

        They agree on the layout of their buckets, which is the same everywhere, and on nothing else.
        """
        for group in self._members:
            group.inner = Alone(None, group.group_name)
        try:
            yield
        finally:
            drop(self._members)

    def together(self, generation: int, store: Any) -> None:  # noqa: ANN401 - a store
        """Put this generation's processes behind all groups, in the script's order."""
        self._alone = False
        with self._fence.recording(generation):
            for group in self._members:
                backend, _ = _c10d._world.pg_map[group]
                group.store = self._store_of(store, group.group_name)
                default = group is _c10d._get_default_group()
                _c10d._world.pg_map[group] = (backend, store if default else group.store)
                self._connect_for_real(group, generation)

    def set_up(self) -> None:
        """The script comes to its loop: what it does from here on is not noted any more."""
        if not self._setting_up:
            return
        self._setting_up = False
        if self._alone:
            return
        self._notes.save()
        for group in self._members:
            if isinstance(group.inner, Noting):
                group.inner = group.inner.real

    def _store_of(self, store: Any, name: str) -> Any:  # noqa: ANN401 - a store
        # A name may come again after its group was destroyed; what the old one left in the store must not.
        return _dist.PrefixStore(f"{name}/{self._names.count(name)}", store)

    def _connect(self, group: StableGroup) -> None:
        if self._alone:
            group.inner = Alone(self._notes, group.group_name)
            return
        with self._fence.recording(self._generation()):
            self._connect_for_real(group, self._generation())
        if self._setting_up:
            group.inner = Noting(group.inner, self._notes, group.group_name)

    def _connect_for_real(self, group: StableGroup, generation: int) -> None:
        group.generation = generation
        group.inner, group.backends = _make_inner(group)
        if set(group.wanted.backends.values()) == {"gloo"}:
            for _, backend in group.backends:
                backend._set_default_timeout(NEVER)
            group.inner = Watching(group.inner, self._works, generation, group.wanted.timeout)


def _backends(backend: str) -> dict[str, str]:
    """Name the backend of each device type that this machine has."""
    found: dict[str, str] = _c10d.BackendConfig(_c10d.Backend(str(backend))).get_device_backend_map()
    with contextlib.suppress(AttributeError):
        accelerator = torch.accelerator.current_accelerator()
        present = {"cpu"} | ({accelerator.type} if accelerator is not None else set())
        return {device: str(name) for device, name in found.items() if device in present}
    return {device: str(name) for device, name in found.items()}


def bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Name the arguments of a call; they come by position in one version and by name in another."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
