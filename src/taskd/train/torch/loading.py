"""Load a state as it is, to the bit.

An optimizer of torch gives each tensor of a loaded state the type of its parameter. For most that is the type
which it had. One that keeps 32 bits beside 16-bit parameters would go on with half of them: the losses of a
recovered run would be others, and nothing would say why.
"""

from typing import Any

import torch


def load_state(thing: Any, state: Any) -> None:  # noqa: ANN401 - anything that is registered, and its state
    """Give an object its state; an optimizer's tensors keep the types that they have in it."""
    thing.load_state_dict(state)
    kind = torch.optim.Optimizer
    # Whoever has a way of its own to load knows better.
    if isinstance(thing, kind) and type(thing).load_state_dict is kind.load_state_dict:
        _take_types(thing, state)


def _take_types(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        loaded = optimizer.state.get(parameter, {})
        for key, value in state["state"].get(number, {}).items():
            now = loaded.get(key)
            # The count is a matter of its own: a fused optimizer wants it as it makes it.
            if key != "step" and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                loaded[key] = value.to(now.device)
