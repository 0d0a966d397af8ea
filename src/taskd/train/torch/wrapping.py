"""Build a script's wrappers so that building them again changes no bit, and keep the script's handle valid.

A DistributedDataParallel holds a group, so it has to be built again when the membership changes. Two things
in it would then change the result:

- **Buckets.** Gradients are added up bucket by bucket, and the place in a bucket decides in which order the
  ranks' values are added. DDP starts with one bucket and lays them out anew after its first step, in the
  order in which gradients arrived. A wrapper built again in the middle would be back at one bucket for a
  step. So the layout is settled at construction, before the first step: torch's own routine is run at
  once, on the parameters in reverse order, which is the order in which gradients of most models arrive.
  Answering False to "rebuild now?" instead would be simpler and is wrong: the reducer goes on collecting
  16 bytes per parameter per step for the rebuild that never comes, and leaves one bucket, so that no
  communication overlaps with the backward pass.
- **The first broadcast.** Construction copies rank 0's state to all. After a fault rank 0 may be the one
  that has nothing yet.

With ``find_unused_parameters`` torch settles the layout at construction itself; it is left alone.

A DDP over a submesh of a tensor parallel module has torch turn the module's DTensors into plain parameters
and back around each forward pass. torch's way leaves the module without any parameter after its first pass,
so its state cannot be asked for, and it cannot be applied twice. Ours does the same and keeps them.
"""
# ruff: noqa: SLF001 - what decides the bits is in private parts; they are checked before they are touched

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel, distributed

_BROADCASTS = ("_verify_param_shape_across_processes", "_sync_module_states")

_Init = Callable[..., None]
_Params = tuple[list[torch.Tensor], list[bool]]


class TorchDoesNotFit(RuntimeError):
    """This version of torch is not one that we know how to build in."""

    def __init__(self, what: str) -> None:
        super().__init__(f"torch {torch.__version__} has no {what}; recovery knows 2.6 to 2.15")


@contextmanager
def building(*, sync: bool) -> Iterator[None]:
    """Build wrappers in this block; all ranks of the group do so at the same time.

    With ``sync=False`` no state is broadcast at construction: the ranks are equal already.
    """
    _check_torch()
    ddp = cast("Any", DistributedDataParallel)
    module = cast("Any", distributed)
    own_init: _Init = ddp.__init__
    own_parameters: Callable[[Any], _Params] = ddp._build_params_for_reducer

    @functools.wraps(own_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - whatever the user passes
        with _exchanging() if kwargs.get("device_mesh") is not None else nullcontext():
            own_init(self, *args, **kwargs)
        _settle_buckets(self)

    @functools.wraps(own_parameters)
    def parameters(self: Any) -> _Params:  # noqa: ANN401 - a DistributedDataParallel under construction
        tensors, sparse = own_parameters(self)
        return (tensors, sparse) if self.find_unused_parameters else (tensors[::-1], sparse[::-1])

    own_broadcasts = {name: getattr(module, name) for name in _BROADCASTS}
    ddp.__init__ = init
    ddp._build_params_for_reducer = parameters
    if not sync:
        # The argument init_sync=False does the same, but came after 2.6.
        for name in _BROADCASTS:
            setattr(module, name, _nothing)
    try:
        yield
    finally:
        ddp.__init__ = own_init
        ddp._build_params_for_reducer = own_parameters
        for name, function in own_broadcasts.items():
            setattr(module, name, function)


def fits() -> bool:
    """Tell whether wrappers can be built in this version of torch."""
    try:
        _check_torch()
    except TorchDoesNotFit:
        return False
    return True


def retire(wrapper: nn.Module) -> None:
    """Take a wrapper's hooks off its parameters, so that it does nothing in the next backward pass.

    A wrapper whose backward pass failed waits for the rest of its gradients; while anybody holds it (a
    traceback does), those of the next pass would start its reduction on the old group.
    """
    for module in wrapper.modules():
        reducer = getattr(module, "reducer", None)
        if isinstance(module, DistributedDataParallel) and reducer is not None:
            reducer._remove_autograd_hooks()


def bucket_layout(ddp: DistributedDataParallel) -> list[list[str]]:
    """Return the names of the parameters in each bucket, in the order of the reduction."""
    names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
    buckets = cast("Any", ddp.reducer)._get_zeros_like_grad_buckets()
    return [[names[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]


# --- tensor parallel modules inside DDP --------------------------------------------------------------------

_LOCAL = "_taskd_local_parameters"


@contextmanager
def _exchanging() -> Iterator[None]:
    from torch.distributed.tensor.parallel import ddp as module

    theirs: Any = module
    if not hasattr(theirs, "_pre_dp_module_transform"):
        raise TorchDoesNotFit("tensor.parallel.ddp._pre_dp_module_transform")
    own = theirs._pre_dp_module_transform
    theirs._pre_dp_module_transform = _exchange_parameters
    try:
        yield
    finally:
        theirs._pre_dp_module_transform = own


def _exchange_parameters(root: nn.Module) -> None:
    """Let DDP see plain parameters, and the forward pass DTensors over the same memory."""
    if hasattr(root, _LOCAL):
        put_back_parameters(root)
        return
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel._data_parallel_utils import sync_grad_hook

    found: list[tuple[nn.Module, str, nn.Parameter, Any]] = []
    for module in root.modules():
        for name, parameter in list(module._parameters.items()):
            if not isinstance(parameter, DTensor):
                continue
            local = nn.Parameter(parameter.to_local().detach(), requires_grad=parameter.requires_grad)
            if local.requires_grad:
                local.register_hook(sync_grad_hook)
            cast("Any", local)._st_info = parameter._spec
            module._parameters[name] = local
            found.append((module, name, local, parameter._spec))

    def as_dtensors(*_: object) -> None:
        for module, name, local, spec in found:
            # In the module's own dictionary: seen before its parameters, and no parameter itself.
            module.__dict__[name] = DTensor.from_local(
                local, spec.mesh, spec.placements, run_check=False, shape=spec.shape, stride=spec.stride
            )

    object.__setattr__(root, _LOCAL, found)
    root.register_forward_pre_hook(as_dtensors)
    root.register_forward_hook(lambda *_: put_back_parameters(root), always_call=True)


def put_back_parameters(root: nn.Module) -> None:
    """Let a tensor parallel module have its plain parameters, as between two forward passes."""
    for module, name, _, _ in getattr(root, _LOCAL, ()):
        module.__dict__.pop(name, None)


def has_ddp(wrapper: nn.Module) -> bool:
    """Tell whether there is something in a wrapper that has to be built again."""
    return any(isinstance(module, DistributedDataParallel) for module in wrapper.modules())


def _nothing(*_: object, **__: object) -> None:
    pass


def _check_torch() -> None:
    if not hasattr(DistributedDataParallel, "_build_params_for_reducer"):
        raise TorchDoesNotFit("DistributedDataParallel._build_params_for_reducer")
    for name in _BROADCASTS:
        if not hasattr(distributed, name):
            raise TorchDoesNotFit(f"torch.nn.parallel.distributed.{name}")
    for name in ("_push_all_rebuilt_params", "_rebuild_buckets", "_remove_autograd_hooks"):
        if not hasattr(cast("Any", torch.distributed).Reducer, name):
            raise TorchDoesNotFit(f"Reducer.{name}")


def _settle_buckets(ddp: Any) -> None:  # noqa: ANN401 - private parts of DistributedDataParallel
    reducer = getattr(ddp, "reducer", None)  # none where all reductions are delayed
    if reducer is None or ddp._use_python_reducer:
        return
    reducer._push_all_rebuilt_params()
    if reducer._rebuild_buckets():
        ddp._has_rebuilt_buckets = True


# What a script does to a wrapper decides the bits as well, and is done again with the next one.
_NOTED = ("register_comm_hook",)


class HandleEmpty(RuntimeError):
    """The wrapper is being built again."""

    def __init__(self) -> None:
        super().__init__(
            "this wrapper belongs to a group that is gone, and is built again before the next step"
        )


class Handle:
    """What the script holds: stands for the wrapper that is there at the moment.

    It is not a module with the wrapper as its child, which would put every parameter under two names;
    it says that it is of the wrapper's class, as a mock does, so ``isinstance(handle, nn.Module)`` holds.
    """

    __slots__ = ("__weakref__", "_taskd_calls", "_taskd_training", "_taskd_wrapper")

    def __init__(self, wrapper: nn.Module | None = None) -> None:
        """Stand for a wrapper, or for none yet."""
        object.__setattr__(self, "_taskd_calls", [])
        object.__setattr__(self, "_taskd_training", None)
        object.__setattr__(self, "_taskd_wrapper", wrapper)

    # ``set`` and ``clear`` are the engine's; everything else is the wrapper's.

    def set(self, wrapper: nn.Module) -> None:
        """Stand for this wrapper from now on, in the mode (training or not) of the one before."""
        old = _wrapper_of(self)
        training: bool | None = _own(self, "_taskd_training") if old is None else old.training
        if training is not None:
            wrapper.training = training
        for name, args, kwargs in _own(self, "_taskd_calls"):
            getattr(wrapper, name)(*args, **kwargs)
        object.__setattr__(self, "_taskd_wrapper", wrapper)

    def clear(self) -> None:
        """Stand for nothing: the group is gone. The old wrapper's hooks are taken off its parameters."""
        old = _wrapper_of(self)
        if old is None:
            return
        object.__setattr__(self, "_taskd_training", old.training)
        object.__setattr__(self, "_taskd_wrapper", None)
        retire(old)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Say that this is what it stands for."""
        wrapper = _wrapper_of(self)
        return Handle if wrapper is None else type(wrapper)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, D102 - the user's forward
        return current(self)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the wrapper's attributes
        found = getattr(current(self), name)
        return functools.partial(_call_and_note, self, found) if name in _NOTED else found

    def __setattr__(self, name: str, value: object) -> None:
        setattr(current(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(current(self), name)

    def __dir__(self) -> list[str]:
        return list(dir(current(self)))

    def __repr__(self) -> str:
        wrapper = _wrapper_of(self)
        return "Handle(no wrapper at the moment)" if wrapper is None else repr(wrapper)

    def __reduce_ex__(self, protocol: Any) -> Any:  # noqa: ANN401 - pickle's own signature
        # A copy of the handle is a copy of what it stands for.
        return current(self).__reduce_ex__(protocol)


def current(handle: Handle) -> nn.Module:
    """Return the wrapper that a handle stands for."""
    wrapper = _wrapper_of(handle)
    if wrapper is None:
        raise HandleEmpty
    return wrapper


def _call_and_note(handle: Handle, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signature
    result = method(*args, **kwargs)
    _own(handle, "_taskd_calls").append((method.__name__, args, kwargs))
    return result


def _own(handle: Handle, name: str) -> Any:  # noqa: ANN401 - one of the two slots
    return object.__getattribute__(handle, name)


def _wrapper_of(handle: Handle) -> nn.Module | None:
    wrapper: nn.Module | None = _own(handle, "_taskd_wrapper")
    return wrapper
