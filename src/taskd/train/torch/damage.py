"""Destroy some of a rank's state on purpose, as a memory error of its device would.

One parameter and one tensor of the optimizer get other bits, so that a recovery which only repeats the step
ends with other losses, and a test can tell. No generator is used that the training uses.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

MAX_BYTES = 65536


def damage(objects: Mapping[str, Any]) -> str:
    """Overwrite a parameter and a tensor of the optimizer with garbage; say which."""
    hit = []
    parameter = next(_parameters(objects), None)
    if parameter is not None:
        name, tensor = parameter
        overwrite(tensor)
        hit.append(f"parameter {name}")
    state = next(_optimizer_tensors(objects), None)
    if state is not None:
        name, tensor = state
        overwrite(tensor)
        hit.append(f"state {name}")
    return " and ".join(hit) + " overwritten" if hit else "there was nothing to overwrite"


def overwrite(tensor: torch.Tensor) -> None:
    """Change bits of a tensor in place: each byte gets another value than it had."""
    local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()
    whole = local.contiguous()  # itself, where it is laid out in one piece
    raw = whole.view(-1).view(torch.uint8)[:MAX_BYTES]
    # Any byte but 0 is true: only the lowest bit makes another truth value of one.
    noise = bytes(raw.numel()) if local.dtype is torch.bool else os.urandom(raw.numel())
    mask = bytearray(byte | 1 for byte in noise)
    raw.bitwise_xor_(torch.frombuffer(mask, dtype=torch.uint8).to(raw.device))
    if whole is not local:
        local.copy_(whole)


def _parameters(objects: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, thing in objects.items():
        if isinstance(thing, torch.nn.Module):
            for inner, parameter in thing.named_parameters():
                if parameter.numel():
                    yield f"{name}.{inner}", parameter


def _optimizer_tensors(objects: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, thing in objects.items():
        if isinstance(thing, torch.optim.Optimizer):
            for state in thing.state.values():
                for key, value in state.items():
                    # Not the count of steps: it is one number, and not where memory errors are.
                    if isinstance(value, torch.Tensor) and value.numel() > 1:
                        yield f"{name}.{key}", value
