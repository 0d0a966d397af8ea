"""The states of registered objects as tensors and a pickle of the rest, and back into the same objects.

Taking a state apart copies no tensor and talks to no other rank: of a tensor that is spread over a mesh
(``DTensor``) the part of this rank is taken. What may change while the tensors are being copied elsewhere is
copied at once: everything that is not a tensor, by the pickle, and modules' buffers, which a forward pass
writes.

Putting a state back writes into the tensors that the objects have already, wherever shape and type are the
same: parameters stay the objects that they are, and a device does not hold the state twice. What does not
exist yet (the state of an optimizer that has made no step) is made, and given to ``load_state_dict``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_not
from typing import Any, NamedTuple

import torch

from taskd.train.torch.exchange import Stateful
from taskd.train.torch.loading import load_state
from taskd.train.torch.own import MAX_BUFFERS_BYTES
from taskd.train.torch.pickling import Shape, Unpickler, densely, is_plain, take_out
from taskd.train.torch.spread import Layout, Meshes, is_spread, local_part, spread_type

# What equal values of cannot be told apart, and nobody can change.
_FIXED = (str, int, float, bool, bytes, type(None), torch.dtype, torch.device)

Fill = Callable[[int, torch.Tensor], None]


class Outline(NamedTuple):
    """A state, or a part of one, without its tensors: what is written down of it."""

    owner: str
    pickled: bytes  # with the tensors' numbers, which begin at 0 in each part
    shapes: list[Shape]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A state, or a part of one, with its tensors."""

    outline: Outline
    tensors: list[torch.Tensor]
    buffers: list[torch.Tensor]  # of modules,
    copies: list[torch.Tensor]  # and the copies of them that are among the tensors

    def refresh(self) -> None:
        """Copy the buffers again."""
        if self.copies:
            torch._foreach_copy_(self.copies, self.buffers)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A part of last time, and what it was made from."""

    leaves: list[Any]
    places: list[int]
    part: Part


class Dissector:
    """Takes states apart, again and again.

    From one step to the next the tensors are the same and only their values differ, so the work of taking
    them apart is kept: it would cost the training a millisecond each time.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._modules: dict[str, tuple[_ModuleWatch, Part]] = {}

    def take_apart(self, objects: Mapping[str, Stateful]) -> list[Part]:
        """Take the objects' states apart. The tensors are the objects' own, buffers of modules excepted.

        A part that is as it was last time is the very same object, with its buffers copied again.
        """
        return [part for name, thing in objects.items() for part in self._parts(name, thing)]

    def _parts(self, name: str, thing: Stateful) -> Iterator[Part]:
        watch, part = self._modules.get(name, (None, None))
        if watch is not None and part is not None and watch.module is thing and watch.is_same():
            part.refresh()
            yield part
            return
        for label, value in _split(thing):
            yield self._part(name, label, thing, value)
        kept = self._kept.get((name, "all"))
        if kept is not None and isinstance(thing, torch.nn.Module) and _ModuleWatch.fits(thing):
            self._modules[name] = _ModuleWatch(thing), kept.part

    def _part(self, name: str, label: str, thing: Stateful, value: object) -> Part:
        leaves: list[Any] = []
        simple = _collect(value, leaves)
        kept = self._kept.get((name, label))
        if simple and kept is not None and _is_same(kept, leaves):
            kept.part.refresh()
            return kept.part
        self._kept.pop((name, label), None)
        part = _make_part(name, thing, value)
        tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        if simple and all(is_plain(tensor) or is_spread(tensor) for tensor in tensors):
            places = _places(leaves)
            if _is_direct(part, places):
                self._kept[name, label] = _Kept(leaves, places, part)
        return part


class _ModuleWatch:
    """Tells in microseconds whether a module consists of the same tensors as before."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        # The dictionaries in which a module has its parts, each as long as it was and with the same in it.
        self._found: list[tuple[dict[str, Any], list[Any]]] = []
        for each in module.modules():
            for held in (each._modules, each._parameters, each._buffers):  # noqa: SLF001 - no other way is as fast
                if held:
                    self._found.append((held, list(held.values())))
        self._tensors = [item for _, items in self._found for item in items if isinstance(item, torch.Tensor)]
        self._places = _places(self._tensors)

    @staticmethod
    def fits(module: torch.nn.Module) -> bool:
        """Tell whether a module's tensors are all of its state."""
        own = torch.nn.Module
        return type(module).state_dict is own.state_dict and all(
            type(each).get_extra_state is own.get_extra_state for each in module.modules()
        )

    def is_same(self) -> bool:
        """Compare with what there is now."""
        for held, items in self._found:
            if len(held) != len(items) or any(map(is_not, held.values(), items)):
                return False
        return self._places == _places(self._tensors)


def put_back(objects: Mapping[str, Stateful], outlines: Sequence[Outline], fill: Fill) -> None:
    """Load states. ``fill(number, tensor)`` writes a tensor's bytes; numbers go through all the outlines."""
    meshes = Meshes(objects.values())
    states: dict[str, Any] = {}
    first = 0
    for outline in outlines:
        targets = _match(outline, objects[outline.owner].state_dict(), meshes)
        loaded = _Loader(outline, targets, fill, first, meshes).load()
        if outline.owner in states:
            states[outline.owner].update(loaded)
        else:
            states[outline.owner] = loaded
        first += len(outline.shapes)
    with torch.no_grad():
        for name, thing in objects.items():
            load_state(thing, states[name])


# --- taking apart ------------------------------------------------------------------------------------------


def _split(thing: Stateful) -> list[tuple[str, object]]:
    """Return the object's state, in parts that change at different times."""
    if isinstance(thing, torch.nn.Module) and type(thing).state_dict is torch.nn.Module.state_dict:
        # The parameters themselves, not new names of them: they are recognised the next time.
        return [("all", thing.state_dict(keep_vars=True))]
    state = thing.state_dict()
    if isinstance(thing, torch.optim.Optimizer) and type(state) is dict and "state" in state:
        # The learning rate changes each step; what belongs to the parameters does so in place.
        rest = {key: value for key, value in state.items() if key != "state"}
        return [("state", {"state": state["state"]}), ("rest", rest)]
    return [("all", state)]


def _collect(value: object, leaves: list[Any]) -> bool:
    """List all keys and values; False if there is anything that may change without being replaced."""
    if isinstance(value, torch.Tensor) or type(value) in _FIXED:
        leaves.append(value)
        return True
    if isinstance(value, dict):
        leaves.append(len(value))
        for key, item in value.items():
            leaves.append(key)
            if isinstance(item, torch.Tensor):  # as below, without a call for each
                leaves.append(item)
            elif not _collect(item, leaves):
                return False
        return True
    if type(value) in {list, tuple}:
        leaves.append((type(value), len(value)))  # type: ignore[arg-type]
        return all(_collect(item, leaves) for item in value)  # type: ignore[attr-defined]
    return False


def _places(leaves: list[Any]) -> list[int]:
    """Return where the tensors among these are, and 0 for what is none."""
    spread = spread_type()
    if not spread:
        return [leaf.data_ptr() if isinstance(leaf, torch.Tensor) else 0 for leaf in leaves]
    return [
        # Not to_local(), which takes twenty times as long and is for those who want a gradient.
        (leaf._local_tensor if isinstance(leaf, spread) else leaf).data_ptr()  # noqa: SLF001 - see above
        if isinstance(leaf, torch.Tensor)
        else 0
        for leaf in leaves
    ]


def _is_same(kept: _Kept, leaves: list[Any]) -> bool:
    if len(leaves) != len(kept.leaves):
        return False
    for old, new in zip(kept.leaves, leaves, strict=True):
        if old is not new and (
            isinstance(old, torch.Tensor)
            or isinstance(new, torch.Tensor)
            or type(old) is not type(new)
            or old != new
        ):
            return False
    return kept.places == _places(leaves)


def _is_direct(part: Part, places: list[int]) -> bool:
    """Tell whether the part's tensors are the objects' own memory and will show their later values too."""
    own = set(places)
    copies = {id(copy) for copy in part.copies}
    return all(tensor.data_ptr() in own or id(tensor) in copies for tensor in part.tensors if tensor.numel())


def _make_part(name: str, thing: Stateful, value: object) -> Part:
    tensors: list[torch.Tensor] = []
    pickled = take_out(name, value, tensors, "kept")
    moving = _moving(thing)
    buffers: list[torch.Tensor] = []
    copies: list[torch.Tensor] = []
    for number, tensor in enumerate(tensors):
        if tensor.data_ptr() in moving:
            buffers.append(tensor)
            tensors[number] = tensor.clone()
            copies.append(tensors[number])
    outline = Outline(name, pickled, [Shape.of(tensor) for tensor in tensors])
    return Part(outline, tensors, buffers, copies)


def _moving(thing: Stateful) -> set[int]:
    """Return where a module's buffers are, if they are small; large ones are tables and do not change."""
    if not isinstance(thing, torch.nn.Module):
        return set()
    buffers = [local_part(buffer) for buffer in thing.buffers()]
    if sum(buffer.nbytes for buffer in buffers) > MAX_BUFFERS_BYTES:
        return set()
    return {buffer.data_ptr() for buffer in buffers} - {0}


# --- putting back ------------------------------------------------------------------------------------------


class _Sketcher(Unpickler):
    """Makes the state with an empty tensor for each number, to see where each belongs."""

    def __init__(self, pickled: bytes, meshes: Meshes) -> None:
        super().__init__(pickled, meshes)
        self.numbers: dict[int, int] = {}

    def make(self, number: int, layout: Layout | None) -> torch.Tensor:  # noqa: ARG002 - spread or not
        token = torch.empty(0)  # kept by the superclass, so its id stays its own
        self.numbers[id(token)] = number
        return token


class _Loader(Unpickler):
    """Makes the state with the tensors that are there, or with new ones, filled."""

    def __init__(
        self, outline: Outline, targets: dict[int, Any], fill: Fill, first: int, meshes: Meshes
    ) -> None:
        super().__init__(outline.pickled, meshes)
        self._shapes = outline.shapes
        self._targets = targets
        self._fill = fill
        self._first = first

    def make(self, number: int, layout: Layout | None) -> torch.Tensor:
        target = self._targets.get(number)
        if target is not None and is_spread(target) == (layout is not None):
            self._fill(self._first + number, local_part(target))
            found: torch.Tensor = target
            return found
        shape = self._shapes[number]
        fresh = shape.make(shape.device)
        self._fill(self._first + number, fresh)
        return fresh if layout is None else self.meshes.join(fresh, layout)


def _match(outline: Outline, present: object, meshes: Meshes) -> dict[int, Any]:
    """Find the tensor that each number belongs into, among those that are there and look the same."""
    sketcher = _Sketcher(outline.pickled, meshes)
    found: dict[int, Any] = {}
    try:
        sketch = sketcher.load()
    except Exception:  # noqa: BLE001 - a sparse tensor, say, does not want to be made of empty ones
        return found
    for token, tensor in _pairs(sketch, present):
        number = sketcher.numbers.get(id(token))
        if number is None or number in found:
            continue
        own = local_part(tensor)
        plain = own.layout is torch.strided and not own.is_conj() and not own.is_neg()
        if plain and own is densely(own) and Shape.of(own) == outline.shapes[number]:
            found[number] = tensor
    return found


def _pairs(sketch: object, present: object) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if isinstance(sketch, torch.Tensor):
        if isinstance(present, torch.Tensor):
            yield sketch, present
    elif isinstance(sketch, Mapping) and isinstance(present, Mapping):
        for key, value in sketch.items():
            if key in present:
                yield from _pairs(value, present[key])
    elif isinstance(sketch, (list, tuple)) and isinstance(present, (list, tuple)):
        for one, other in zip(sketch, present, strict=False):
            yield from _pairs(one, other)
