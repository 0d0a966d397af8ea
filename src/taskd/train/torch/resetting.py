"""Bring sharded modules back to the start of a step after a forward or backward pass that was interrupted.

FSDP2 keeps what it is in the middle of: parameters that are gathered, gathers and reductions under way, the
order of the forward pass, callbacks that wait for the end of the backward pass. A step that is repeated needs
all of it as it is between two steps. Gradients of the shards are left alone: they may be complete, and then
they are applied. torch has a reset of its own since 2.13, which waits for what is under way; here that has
been cut and never ends well.

Parameters that DDP and tensor parallelism exchange during a forward pass are put back (see ``wrapping``).
"""
# ruff: noqa: SLF001 - what a pass leaves behind is private; only what exists in this version is touched

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from taskd.train.torch.wrapping import put_back_parameters

_CLASSIC = ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel")
_ZERO = ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer")


class ClassicFsdp(TypeError):
    """FSDP's first version was given."""

    def __init__(self) -> None:
        super().__init__(
            "FullyShardedDataParallel keeps its shards in flat parameters that cannot be brought back after "
            "a fault; use torch.distributed.fsdp.fully_shard, or leave this module out of job.wrap and "
            "job.register to train without recovery from memory"
        )


class SingleShares(TypeError):
    """An optimizer was given whose shares have no second copy."""

    def __init__(self) -> None:
        super().__init__(
            "ZeroRedundancyOptimizer has one copy of each share, and needs all ranks for a state_dict; use "
            "taskd.train.ShardedOptimizer, which keeps two, or leave it out of job.register to train without "
            "recovery from memory"
        )


def refuse_unkept(thing: object) -> None:
    """Raise for what keeps its state in a way that cannot be brought back."""
    if _is(thing, _ZERO):
        raise SingleShares
    if isinstance(thing, nn.Module) and any(_is(part, _CLASSIC) for part in thing.modules()):
        raise ClassicFsdp


def _is(thing: object, kind: tuple[str, str]) -> bool:
    # By name: importing either class takes a while.
    return any((each.__module__, each.__qualname__) == kind for each in type(thing).__mro__)


def reset_modules(roots: Iterable[object]) -> None:
    """Reset all that is sharded in these modules, each once."""
    seen: set[int] = set()
    for root in roots:
        if not isinstance(root, nn.Module):
            continue
        for module in root.modules():
            put_back_parameters(module)
            state = _fsdp_state(module)
            if state is not None and id(state) not in seen:
                seen.add(id(state))
                _reset_state(state)


def _fsdp_state(module: nn.Module) -> Any:  # noqa: ANN401 - an FSDPState, or None
    if all(kind.__name__ != "FSDPModule" for kind in type(module).__mro__):
        return None
    from torch.distributed._composable_state import _get_module_state

    state = _get_module_state(module)
    return state if hasattr(state, "_comm_ctx") and hasattr(state, "_state_ctx") else None


def _reset_state(state: Any) -> None:  # noqa: ANN401 - an FSDPState
    _reset_communication(state._comm_ctx)
    shared = state._state_ctx
    _set(shared, iter_forward_root=None, post_backward_final_callback_queued=False)
    _set(shared, manual_backward_finalization_active=None, gradient_reduction_pending=False)
    state._training_state = _idle(state._training_state)
    _clear(state, "_modules_to_run_forward")
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    for group in groups:
        _reset_group(group)


def _reset_communication(context: Any) -> None:  # noqa: ANN401 - an FSDPCommContext
    _set(context, all_gather_state=None, reduce_scatter_state=None, active_gradient_reduction=None)
    _clear(context, "reduce_scatter_states")
    _clear(context, "_last_post_reduce_events")
    _clear(context, "post_forward_order")


def _reset_group(group: Any) -> None:  # noqa: ANN401 - an FSDPParamGroup
    _set(group, _all_gather_result=None, _post_reduce_event=None, _reshard_after_forward_event=None)
    _set(group, _all_reduce_state=None, _partial_reduce_output=None, _post_backward_pending=False)
    _clear(group, "_partial_reduce_output_layout")
    _clear(group, "_post_forward_indices")
    _clear(group, "_all_reduce_hook_states")
    for parameter in group.fsdp_params:
        _set(parameter, unsharded_accumulated_grad=None)
        gathered = getattr(parameter, "_unsharded_param", None)
        if gathered is not None:
            gathered.grad = None
    if hasattr(group, "_set_unsharded_grad_dtypes"):
        group._set_unsharded_grad_dtypes(defer_upcast=False)
    group._training_state = _idle(group._training_state)
    with torch.no_grad():
        group._to_sharded()


def _idle(state: Any) -> Any:  # noqa: ANN401 - a TrainingState
    return type(state).IDLE


def _set(thing: object, **values: object) -> None:
    for name, value in values.items():
        if name in vars(thing):  # a property of another version's is not
            setattr(thing, name, value)


def _clear(thing: object, name: str) -> None:
    found = getattr(thing, name, None)
    if found:
        found.clear()
