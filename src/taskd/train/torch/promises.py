"""What a script does that recovery cannot make good, as far as it can be seen."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch

log = logging.getLogger("taskd")


class LoopBody:
    """Says, once, that a script talks to the other ranks between two steps."""

    def __init__(self, rank: int) -> None:
        """Nothing was said; only rank 0 says it."""
        self._silent = rank != 0

    def came_back(self, calls_before: int | None, calls: int, step: int) -> None:
        """The body has run for a step: see how many collectives there were before and are now."""
        if not self._silent and calls_before != calls:
            self._silent = True
            log.warning(
                "taskd: collectives are called between two steps (after step %d); a fault there ends the "
                "processes that wait in them. Call them inside the step: they are repeated with it",
                step,
            )


def find_broken_promises(objects: Mapping[str, Any], wrapped: Iterable[Any]) -> list[str]:
    """Return sentences, each with what to do; none for a script that registers what it trains."""
    modules = [thing for thing in objects.values() if isinstance(thing, torch.nn.Module)]
    optimizers = [thing for thing in objects.values() if isinstance(thing, torch.optim.Optimizer)]
    registered = {id(parameter) for module in modules for parameter in module.parameters()}
    found: list[str] = []
    for module in wrapped:
        if not isinstance(module, torch.nn.Module):
            continue
        missing = sum(id(parameter) not in registered for parameter in module.parameters())
        if missing:
            found.append(
                f"{missing} parameters of a wrapped module are not registered, so a replaced rank would not "
                "have them; pass the module to job.register"
            )
    if modules and not optimizers:
        found.append("no optimizer is registered, so a replaced rank would begin with a fresh one")
    for optimizer in optimizers:
        strangers = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) not in registered
        ]
        if strangers and modules:
            found.append(
                f"an optimizer updates {len(strangers)} parameters of modules that are not registered; pass "
                "those to job.register too"
            )
    return found
