"""Small states of registered objects: schedules, counters, generators, hidden states, whatever a script has.

They are copied in every step, to repeat it (``begun``) or to outlive the process (``own``), so that must take
microseconds: neither ``deepcopy`` nor torch's own pickling does. What has more than a few megabytes of
tensors, or thousands of values (a history that grows), is too large for that, and is left to whoever copies
the whole state.
"""

import ctypes
import io
import pickle
from copy import copy, deepcopy
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch

MAX_BYTES = 4 * 1024 * 1024
VALUE_BYTES = 1024  # what a single value counts for, by the time that it takes

# What nobody can change; programs are none of a state's business.
_FIXED = (str, int, float, bool, bytes, type(None), torch.dtype, torch.device)
_PROGRAMS = (type, FunctionType, BuiltinFunctionType, MethodType)


class TooLarge(Exception):
    """There is more than should be copied in each step."""


def is_small_kind(thing: object) -> bool:
    """Tell whether an object is neither a module nor an optimizer, nor in the midst of a pass over data.

    Loading a state ends the pass of a loader or a sampler.
    """
    return not isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)) and not hasattr(thing, "__iter__")


def may_differ(thing: object) -> bool:
    """Tell whether this may be another thing on each rank: schedules and scalers are alike on all."""
    shared = (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    return is_small_kind(thing) and not isinstance(thing, shared)


def read(thing: Any) -> Any:  # noqa: ANN401 - anything that is registered, and its state
    """Return an object's state."""
    if isinstance(thing, torch.amp.GradScaler):
        # Its state_dict waits for the device.
        return {"_scale": thing._scale, "_growth_tracker": thing._growth_tracker}  # noqa: SLF001 - see above
    return thing.state_dict()


def write(thing: Any, state: Any) -> None:  # noqa: ANN401 - as above
    """Give an object a state that nobody else holds, unless it has the same already."""
    if same(state, read(thing)):
        return
    if isinstance(thing, torch.amp.GradScaler):
        vars(thing).update(state)
    else:
        thing.load_state_dict(state)


def copied(value: Any) -> Any:  # noqa: ANN401 - any state
    """Copy a state; raises TooLarge."""
    return _copied(value, [MAX_BYTES], packs=False)


def packed(state: Any) -> bytes:  # noqa: ANN401 - any state
    """Make bytes of a state, the same for equal ones; raises TooLarge."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.fast = True  # without references, in which equal states may differ
    pickler.dump(_copied(state, [MAX_BYTES], packs=True))
    return file.getvalue()


def unpacked(data: bytes) -> Any:  # noqa: ANN401 - any state
    """Make a state of bytes."""
    return _unpack(pickle.loads(data))  # noqa: S301 - written by a rank of this job


def same(one: Any, other: Any) -> bool:  # noqa: ANN401 - any two states
    """Tell whether two states are equal for sure; what cannot be compared is not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if type(one) in {list, tuple}:
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) in _FIXED and bool(one == other)


class _Packed(NamedTuple):
    """A tensor's bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    data: bytes


def _copied(value: Any, room: list[int], *, packs: bool) -> Any:  # noqa: ANN401 - as above
    tensor = isinstance(value, torch.Tensor)
    room[0] -= VALUE_BYTES + (value.nbytes if tensor else 0)
    if room[0] < 0:
        raise TooLarge
    if type(value) in _FIXED or isinstance(value, _PROGRAMS):
        return value
    if tensor:
        return _pack(value) if packs else value.detach().clone()
    if type(value) is dict:
        return {key: _copied(item, room, packs=packs) for key, item in value.items()}
    if isinstance(value, dict):
        fresh = copy(value)
        for key, item in value.items():
            fresh[key] = _copied(item, room, packs=packs)
        return fresh
    if type(value) is list:
        return [_copied(item, room, packs=packs) for item in value]
    if type(value) is tuple:
        return tuple(_copied(item, room, packs=packs) for item in value)
    return _deeply_copied(value, room)


def _deeply_copied(value: Any, room: list[int]) -> Any:  # noqa: ANN401 - as above
    """Copy what is of another kind (an array, a deque, an object), if it does not say that it is large."""
    room[0] -= getattr(value, "nbytes", 0) or VALUE_BYTES * (len(value) if hasattr(value, "__len__") else 0)
    if room[0] < 0:
        raise TooLarge
    return deepcopy(value)


def _pack(tensor: torch.Tensor) -> _Packed:
    flat = tensor.detach().cpu().contiguous().view(-1)
    data = ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b""
    return _Packed(tensor.dtype, tuple(tensor.shape), str(tensor.device), data)


def _unpack(value: Any) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, _Packed):
        if not value.data:
            return torch.empty(value.shape, dtype=value.dtype, device=value.device)
        flat = torch.frombuffer(bytearray(value.data), dtype=torch.uint8)
        return flat.view(value.dtype).view(value.shape).to(value.device)
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _unpack(item)
        return value
    if type(value) is list:
        return [_unpack(item) for item in value]
    if type(value) is tuple:
        return tuple(_unpack(item) for item in value)
    return value
