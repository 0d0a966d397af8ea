"""Make the process groups that a script makes by itself ones that survive a fault.

Most scripts call ``init_process_group`` by habit, or have a DeviceMesh do it. What they call may have been
imported before ``join`` (``from torch.distributed import init_process_group``), so changing that name would
miss them. Two functions are changed that torch itself looks up each time: the one that meets the other
ranks, and the one that makes a group.

A third is changed by its name: whoever tells others its objects by ``broadcast_object_list`` keeps its own,
also in the process that replaces it, which may have made up others. That one gets its predecessor's.

Nothing here imports torch: a script that joins and does not use torch should not pay for it. If torch's
module is there already it is changed at once, otherwise when it is loaded.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskd.train.torch.groups import Groups

_MODULE = "torch.distributed.distributed_c10d"


def hook_groups(ask: Callable[[], "Groups | None"]) -> None:
    """From now on groups are made by what ``ask`` returns, or by torch alone if it returns None."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _change(module, ask)
    else:
        sys.meta_path.insert(0, _OnLoad(lambda loaded: _change(loaded, ask)))


class _OnLoad(importlib.abc.MetaPathFinder):
    """Calls back once, when the module has been loaded."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._then(module)

        loader.exec_module = exec_module
        return spec


def _change(module: ModuleType, ask: Callable[[], "Groups | None"]) -> None:
    c10d: Any = module
    own_rendezvous, own_helper = c10d.rendezvous, c10d._new_process_group_helper  # noqa: SLF001 - see above
    current: Groups | None = None

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **more: Any) -> Iterator[Any]:  # noqa: ANN401
        nonlocal current

        def own() -> Iterator[Any]:
            found: Iterator[Any] = own_rendezvous(url, rank, world_size, **more)
            return found

        mine, size = int(os.environ.get("RANK", "-1")), int(os.environ.get("WORLD_SIZE", "-1"))
        launched = url.startswith("env://") and rank in {-1, mine} and world_size in {-1, size}
        current = ask() if launched else None
        return own() if current is None else current.rendezvous(own, mine, size)

    def new_process_group_helper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signature
        return own_helper(*args, **kwargs) if current is None else _make(current, own_helper, args, kwargs)

    own_broadcast = c10d.broadcast_object_list

    @functools.wraps(own_broadcast)
    def broadcast_object_list(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signature
        if current is not None and current.alone:
            args, kwargs = (), _as_listener(c10d, own_broadcast, args, kwargs)
        return own_broadcast(*args, **kwargs)

    known: Any
    for known in (c10d, sys.modules.get("torch.distributed")):
        if getattr(known, "broadcast_object_list", None) is own_broadcast:
            known.broadcast_object_list = broadcast_object_list
    c10d.rendezvous = rendezvous
    c10d._new_process_group_helper = new_process_group_helper  # noqa: SLF001


def _as_listener(
    c10d: Any,  # noqa: ANN401 - a module
    own: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Return the arguments of a broadcast with another rank as its source: nobody is there but the notes."""
    from taskd.train.torch.groups import StableGroup, bind

    call = bind(own, args, kwargs)
    group = call["group"] or c10d._get_default_group()  # noqa: SLF001 - as torch does
    if isinstance(group, StableGroup) and group.size() > 1 and "group_src" in call:
        call.update(src=None, group_src=(group.rank() + 1) % group.size())
    return call


def _make(groups: "Groups", own: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    from taskd.train.torch.groups import bind

    call = bind(own, args, kwargs)
    if groups.takes(call["global_ranks_in_group"], str(call["backend"])):
        return groups.make(call)
    return own(*args, **kwargs)
