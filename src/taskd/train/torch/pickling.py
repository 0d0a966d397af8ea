"""A state as a pickle in which every tensor is replaced by its number, and the tensors beside it.

The tensors' own memory is then what is sent (``exchange``), kept (``states``) or written (``statefile``); a
pickle of it all would copy everything twice. Tensors that are the very same view of the same memory (tied
weights) have one number. Those that overlap in another way come back with the right values and memory of
their own. A tensor whose elements do not fill one stretch of memory is copied. Of a DTensor this rank's part
is taken (see ``spread``). Other tensor subclasses and sparse or quantized tensors stay inside the pickle.

How the tensors come back is not the same for all:

- what was sent or read lies in the host's memory, and is moved to the kind of device that it came from
  (``Placing``);
- what was kept goes straight into the tensors that the objects have (``states``): a device does not hold it
  twice.

Unpickling runs what the pickle says. Who does it says why that pickle may be believed.
"""

import ctypes
import io
import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from taskd.train.torch.spread import Layout, Meshes, is_spread, layout_of, local_part

ALIGN = 64  # bytes; tensors that lie one after the other begin at multiples of it


@dataclass(frozen=True, slots=True)
class Shape:
    """What is needed to make a tensor again."""

    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    device: str  # its kind only: the number that it had means nothing elsewhere

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Shape":
        """Describe a dense tensor."""
        return cls(tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), tensor.device.type)

    @property
    def length(self) -> int:
        """The bytes that it has."""
        length = self.dtype.itemsize
        for extent in self.size:
            length *= extent
        return length

    def make(self, device: str | None = None) -> torch.Tensor:
        """Make such a tensor, on the current device of a kind; the host by default."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)


def take_out(name: str, state: object, tensors: list[torch.Tensor], purpose: str) -> bytes:
    """Return a state's pickle, and add its tensors to the list: dense ones, the originals where they are."""
    file = io.BytesIO()
    try:
        _Pickler(file, tensors).dump(state)
    except Exception as error:
        error.add_note(f"the state of {name!r} cannot be {purpose}")
        raise
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        # With the tensor itself, or its memory might become another one's while we work.
        self._seen: dict[tuple[object, ...], tuple[int, torch.Tensor]] = {}

    def persistent_id(self, obj: object) -> Any:  # noqa: ANN401 - a number, a part and its layout, or None
        if isinstance(obj, torch.Tensor):
            if is_plain(obj):
                return self._number(obj)
            if is_spread(obj):
                own = local_part(obj)
                return (self._number(own) if is_plain(own) else own, *layout_of(obj))
        return None

    def _number(self, plain: torch.Tensor) -> int:
        tensor = plain.detach().resolve_conj().resolve_neg()
        place = (tensor.data_ptr(), tensor.dtype, tensor.device, tensor.size(), tensor.stride())
        if tensor.data_ptr() and place in self._seen:
            return self._seen[place][0]
        self._seen[place] = len(self._tensors), tensor
        self._tensors.append(densely(tensor))
        return len(self._tensors) - 1


class Unpickler(pickle.Unpickler, ABC):
    """Makes a state again; how it comes by its tensors is the subclass's."""

    def __init__(self, pickled: bytes, meshes: Meshes) -> None:
        super().__init__(io.BytesIO(pickled))
        self.meshes = meshes
        self._made: dict[Any, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:  # noqa: ANN401 - pickle's own signature
        """Return the tensor of a number, or the spread one that it is the part of; for each the same one."""
        if pid not in self._made:
            if isinstance(pid, int):
                self._made[pid] = self.make(pid, None)
            else:
                part, layout = pid[0], Layout(*pid[1:])
                known = isinstance(part, int)
                self._made[pid] = self.make(part, layout) if known else self.meshes.join(part, layout)
        return self._made[pid]

    @abstractmethod
    def make(self, number: int, layout: Layout | None) -> torch.Tensor:
        """Return the tensor of a number; with a layout it is the part of a spread one, which is returned."""


class Placing(Unpickler):
    """Puts tensors from the host's memory back on the kind of device that they came from."""

    def __init__(
        self, pickled: bytes, meshes: Meshes, shapes: list[Shape], tensors: list[torch.Tensor]
    ) -> None:
        super().__init__(pickled, meshes)
        self._shapes = shapes
        self._tensors = tensors

    def make(self, number: int, layout: Layout | None) -> torch.Tensor:
        """Move it, if it has to be."""
        tensor = self._tensors[number].to(self._shapes[number].device)
        return tensor if layout is None else self.meshes.join(tensor, layout)


# --- tensors as bytes --------------------------------------------------------------------------------------


def is_plain(value: object) -> bool:
    """Tell whether a tensor's bytes say all about it."""
    return (
        type(value) in {torch.Tensor, torch.nn.Parameter}
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


def densely(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself if its elements fill one stretch of memory (in any order), else a copy."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if extent == 1:
            continue
        if stride != expected:
            return tensor.contiguous()
        expected *= extent
    return tensor


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """View a dense tensor's memory as bytes."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def buffer_of(data: torch.Tensor) -> memoryview:
    """Give a CPU byte tensor to a function that wants a buffer, without NumPy and without a copy."""
    return memoryview((ctypes.c_ubyte * data.numel()).from_address(data.data_ptr()))


def aligned(length: int) -> int:
    """Return the next multiple of ``ALIGN``."""
    return -(-length // ALIGN) * ALIGN
