"""What a rank got from the others before its loop, kept for the process that takes the rank over.

Before its first step a script talks to the other ranks: it spreads its weights, agrees on a seed or the name
of a directory, waits at barriers. A replacement runs the same lines, but the others did theirs long ago and
are in the middle of training. So the first process of a rank notes the results of these calls in the node's
shared memory, and its replacement gets them from there; nobody else takes part. When the loop begins the same
notes are given to a rank of the next node, for a replacement that comes up elsewhere (``Keeping.agree``).

Notes belong to one rank and to one common start of all ranks; a file says of which, and has a checksum.

Large results of floating point numbers are not kept: they are weights, and weights come with the registered
state. A replacement that finds no note of such a result goes on with what it has. Of any other result it says
so: a seed or a name that differs from everybody else's is worse than a restart.

What one rank sends to another is noted where it arrives, when the script has waited for it.
"""

import functools
import logging
import os
import pickle
import struct
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import Work

from taskd.worker.client import Worker
from taskd.worker.questions import fetch_notes

KEEP_BYTES = 1024 * 1024  # one result of floating point numbers
KEEP_ALL_BYTES = 16 * 1024 * 1024

_Key = tuple[str, str, tuple[tuple[str, tuple[int, ...]], ...]]
_HEAD = struct.Struct("<4q")
_TOO_LARGE = "it was too large for a note, or nobody had waited for it when the loop began"
_UNKNOWN = "recv_anysource"  # who it came from is an answer too, and is not in the tensors
_ASKING = ("_get", "_set", "_start", "_end", "get_", "set_")

log = logging.getLogger("taskd")


class NotNoted(RuntimeError):
    """A replacement asks for something that its predecessor did not."""

    def __init__(self, operation: str, group: str, why: str = "there is no note of it") -> None:
        super().__init__(
            f"this rank was replaced, and its script does {operation} on group {group} before its loop, "
            f"where it should get what the process before it got; {why}"
        )


class Done(Work):
    """A call that is over."""

    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: object = None) -> bool:  # noqa: ARG002 - torch's own signature
        """There is nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """It is."""
        return True

    def is_success(self) -> bool:
        """It was."""
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """For those who chain on it."""
        return self._future

    def result(self) -> list[torch.Tensor]:
        """Return what came out."""
        found: list[torch.Tensor] = self._future.value()
        return found


class Received(Work):
    """A message on its way to this rank; noted when the script has waited for it."""

    def __init__(self, work: Any, then: Callable[[], None]) -> None:  # noqa: ANN401 - a work of torch's
        super().__init__()
        self._work = work
        self._then = then

    def wait(self, *args: Any, **kwargs: Any) -> bool:  # noqa: ANN401 - torch's own signature
        """Wait, and note what came, once."""
        done: bool = self._work.wait(*args, **kwargs)
        then, self._then = self._then, _nothing
        then()
        return done

    def is_completed(self) -> bool:
        """As the real one says."""
        completed: bool = self._work.is_completed()
        return completed

    def is_success(self) -> bool:
        """As the real one says."""
        success: bool = self._work.is_success()
        return success


def _nothing() -> None:
    pass


class Origin(NamedTuple):
    """Whose notes they are: the generation at which all ranks last started together, the rank, the world."""

    began: int
    rank: int
    world: int


class SetupNotes:
    """The notes of one rank; a file in shared memory once the script comes to its loop.

    ``fetch`` gets them from another node, given a function that tells whether they are whole.
    """

    def __init__(
        self, directory: Path, origin: Origin, fetch: Callable[[Callable[[bytes], bool]], bytes] | None = None
    ) -> None:
        self._directory = directory
        self._origin = origin
        self._fetch = fetch
        self._taken: list[tuple[_Key, list[torch.Tensor] | None]] = []
        self._size = 0
        self._kept: dict[_Key, deque[list[torch.Tensor] | None]] | None = None
        self.lenient = False  # while a wrapper is built, nothing but weights and torch's own checks travel

    def expect(self, operation: str, group: str, results: list[torch.Tensor]) -> Callable[[], None]:
        """Note that a call was made; returns what notes its result, to be called when that is there."""
        key, at = _key(operation, group, results), len(self._taken)
        self._taken.append((key, None))

        def take() -> None:
            size = sum(result.nbytes for result in results)
            small = size <= KEEP_BYTES or not _are_weights(results)
            if small and self._size + size <= KEEP_ALL_BYTES and at < len(self._taken):
                self._size += size
                self._taken[at] = (key, [result.detach().cpu().clone() for result in results])

        return take

    def take(self, operation: str, group: str, results: list[torch.Tensor]) -> None:
        """Note what came out of a call."""
        self.expect(operation, group, results)()

    def save(self) -> None:
        """Leave the notes to a replacement."""
        self._write(self._origin, _seal(self._origin, pickle.dumps(self._taken, pickle.HIGHEST_PROTOCOL)))
        self._taken = []

    def export(self) -> bytes:
        """Return this rank's notes as they are kept; nothing if there are none."""
        return self._load(self._origin)

    def has(self, owner: int) -> bool:
        """Tell whether another rank's notes are kept here."""
        return bool(self._load(self._origin._replace(rank=owner)))

    def keep(self, owner: int, data: bytes) -> None:
        """Keep notes that came from another node, for a replacement that comes up here or has none."""
        origin = self._origin._replace(rank=owner)
        if not _is_sealed(origin, data):
            # A replacement that had nothing to ask of its predecessor's has none; those are here, and stay.
            if not self.has(owner):
                log.warning("taskd: rank %d has no notes that could be kept elsewhere", owner)
            return
        try:
            self._write(origin, data)
        except OSError as error:
            log.warning("taskd: the notes of rank %d cannot be kept: %s", owner, error)

    def repeat(self, operation: str, group: str, results: list[torch.Tensor]) -> bool:
        """Put what came out of a predecessor's call where this result belongs; False if there is none."""
        if self._kept is None:
            self._kept = self._read()
        waiting = self._kept.get(_key(operation, group, results))
        copies = waiting[0] if waiting else None
        if copies is None and not self.lenient and not _are_weights(results):
            raise NotNoted(operation, group, *([_TOO_LARGE] if waiting else []))
        if waiting:
            waiting.popleft()
        if copies is None:
            return False
        with torch.no_grad():
            for result, copy in zip(results, copies, strict=True):
                result.copy_(copy)
        return True

    def _read(self) -> dict[_Key, deque[list[torch.Tensor] | None]]:
        kept: dict[_Key, deque[list[torch.Tensor] | None]] = defaultdict(deque)
        data = self._load(self._origin)
        if not data and self._fetch is not None:
            data = self._fetch(functools.partial(_is_sealed, self._origin))
            if data:
                self.keep(self._origin.rank, data)  # for whoever replaces this process
        if not data:
            log.warning("taskd: no notes of what this rank did before its loop")
            return kept
        # Written by the process that had this rank before, as the same user.
        for key, copies in pickle.loads(data[_HEAD.size :]):  # noqa: S301 - see above
            kept[key].append(copies)
        return kept

    def _load(self, origin: Origin) -> bytes:
        try:
            data = self._path(origin).read_bytes()
        except OSError:
            return b""
        return data if _is_sealed(origin, data) else b""

    def _write(self, origin: Origin, data: bytes) -> None:
        draft = self._path(origin).with_suffix(f".{os.getpid()}.draft")
        draft.write_bytes(data)
        draft.replace(self._path(origin))

    def _path(self, origin: Origin) -> Path:
        # By the rank's name: whoever has the rank later, and whatever its slot is called, finds it.
        return self._directory / f"rank-{origin.rank}.setup"


def open_notes(worker: Worker, slot: str, rank: int, world: int) -> SetupNotes:
    """Return the notes of this process's rank, which are beside its slot or on another node."""
    began = int(os.environ.get("TASKD_BEGAN", "0"))
    fetch = functools.partial(fetch_notes, worker, rank)
    return SetupNotes(Path(slot).parent, Origin(began, rank, world), fetch)


class Noting:
    """Stands before a group while a script sets itself up, and notes what comes out."""

    def __init__(self, real: Any, notes: SetupNotes, name: str) -> None:  # noqa: ANN401 - a process group
        self.real = real
        self._notes = notes
        self._name = name

    def __getattr__(self, operation: str) -> Any:  # noqa: ANN401 - the group's attributes
        found = getattr(self.real, operation)
        if operation.startswith(_ASKING) or operation in ("send", _UNKNOWN):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's own signatures
            work = found(*args, **kwargs)
            if operation == "recv":
                # Not waited for here: the other side may be about to receive first, and to send then.
                return Received(
                    work, self._notes.expect(_name(operation, args), self._name, _results(operation, args))
                )
            if isinstance(work, Work):
                # What comes out is there when the work is done; before the loop nobody is in a hurry.
                work.wait()
                self._notes.take(operation, self._name, _results(operation, args))
            return work

        return call


class Alone:
    """Stands where a group would be: every call is over at once, as the notes say, or with nothing done."""

    def __init__(self, notes: SetupNotes | None, name: str) -> None:
        self._notes = notes
        self._name = name

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation.startswith("__"):
            raise AttributeError(operation)
        if operation == _UNKNOWN:
            raise NotNoted(operation, self._name)

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, ARG001 - torch's own signatures
            results = _results(operation, args)
            name = _name(operation, args)
            known = self._notes is not None and self._notes.repeat(name, self._name, results)
            if not known and operation == "allgather":
                _answer_with_own(results, args)
            return Done(results)

        return call

    def _get_backend(self, device: object) -> "Alone":  # noqa: ARG002 - torch's own signature
        return self

    get_backend = _get_backend
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def _start_coalescing(self, device: object) -> None:
        pass

    def _end_coalescing(self, device: object) -> Done:  # noqa: ARG002 - torch's own signature
        return Done([])

    def set_timeout(self, timeout: object) -> None:
        """There is nobody to wait for."""


def _seal(origin: Origin, payload: bytes) -> bytes:
    """Put in front of notes whose they are, and a checksum of it all."""
    return _HEAD.pack(*origin, _checksum(origin, payload)) + payload


def _is_sealed(origin: Origin, data: bytes) -> bool:
    """Tell whether these are whole notes of that rank, of this start."""
    if len(data) <= _HEAD.size:
        return False
    *whose, checksum = _HEAD.unpack_from(data)
    return tuple(whose) == origin and checksum == _checksum(origin, data[_HEAD.size :])


def _checksum(origin: Origin, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(repr(tuple(origin)).encode()))


def _answer_with_own(results: list[torch.Tensor], args: tuple[Any, ...]) -> None:
    """Let all have said what this rank says: what it would get is memory that nobody has written to."""
    given = list(_tensors(args[1])) if len(args) > 1 else []
    with torch.no_grad():
        for result in results:
            if len(given) == 1 and given[0].shape == result.shape:
                result.copy_(given[0])


def _results(operation: str, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Return the tensors that a call writes: in all of torch's signatures those of its first argument."""
    if not args or operation in ("barrier", "send"):
        return []
    return list(_tensors(args[0]))


def _name(operation: str, args: tuple[Any, ...]) -> str:
    """Name a call; what is received from two ranks, or under two tags, is not the same."""
    return f"{operation} {args[1:]}" if operation == "recv" else operation


def _are_weights(results: list[torch.Tensor]) -> bool:
    return all(result.is_floating_point() for result in results)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _key(operation: str, group: str, results: list[torch.Tensor]) -> _Key:
    return operation, group, tuple((str(result.dtype), tuple(result.shape)) for result in results)
