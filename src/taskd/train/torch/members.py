"""The tensors of registered modules, found quickly.

They are asked for several times in every step. ``Module.parameters()`` makes a name for each on its way; a
walk over dictionaries takes a third of that. The order is the same, and nothing is remembered: a script may
change its modules at any time.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch


def parameters_in(objects: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the parameters of all modules among the objects, each once."""
    return parameters_of(modules_in(objects))


def parameters_of(modules: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Return the parameters that these modules have themselves, each once."""
    return _unique(module._parameters for module in modules)  # noqa: SLF001 - see above


def buffers_of(modules: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Return the buffers that these modules have themselves, each once."""
    return _unique(module._buffers for module in modules)  # noqa: SLF001 - see above


def modules_in(objects: Mapping[str, Any]) -> list[torch.nn.Module]:
    """Return all modules among the objects and inside of them, each once."""
    found: dict[int, torch.nn.Module] = {}
    waiting: list[Any] = [thing for thing in objects.values() if isinstance(thing, torch.nn.Module)]
    waiting.reverse()
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in found:
            continue
        found[id(module)] = module
        if children := module._modules:  # noqa: SLF001 - see above
            waiting.extend(reversed(children.values()))
    return list(found.values())


def _unique(groups: Iterable[Mapping[str, torch.Tensor | None]]) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for group in groups:
        if group:
            for tensor in group.values():
                if tensor is not None:
                    found[id(tensor)] = tensor
    return list(found.values())
