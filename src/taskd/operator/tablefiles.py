"""Rank tables as files on storage that all nodes share.

Such storage may hang, and what lies on it may be anybody's: a link, a pipe, a table of another cluster. So

- nothing is done in the event loop: each piece of work has a thread of its own, a limit in time, and at most
  one for a directory. A thread that hangs cannot be ended; a few of them are put up with, and then work is
  refused at once until one returns. They are daemons, so that they do not keep the process from ending.
- only regular files are read and replaced, and links are not followed.
- a mark beside the table says whose it is: cluster, job and UID. What bears another mark, or none, is never
  removed. The table of a job that is made again under the same name passes to the new one with the mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from taskd.core.acjob.ranktable import Written, read_written
from taskd.core.acjob.volumes import HCCL_JSON, VERSION

LIMIT_S = 5.0
STUCK = 4
"""So many threads may hang; each is one directory that does not answer."""
WIDTH = 4
LARGEST_BYTES = 64 << 20
MARK = ".taskd"
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
T = TypeVar("T")


Wanted = Callable[[], bool]
Decide = Callable[[Written | None], Written | None]
"""From what the files hold to what has to be written, if anything."""


class Mark(msgspec.Struct, frozen=True):
    """Whose table it is."""

    cluster: str
    job: str
    uid: str


@dataclass(slots=True, eq=False)
class _Work:
    """A thread that is busy with a directory."""

    answer: asyncio.Future[object]
    overrun: bool = False
    """Nobody waits for it any more."""


@dataclass(slots=True)
class TableFiles:
    """The directory of all tables; empty switches them off."""

    root: str = ""
    cluster: str = ""
    """Tells this cluster's tables from those of another that uses the same storage."""
    limit_s: float = LIMIT_S
    _busy: dict[Path, _Work] = field(default_factory=dict)
    _width: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WIDTH))

    async def update(self, namespace: str, name: str, uid: str, decide: Decide) -> None:
        """Read the job's table, and write what `decide` makes of it; OSError says why not."""
        path = self._path(namespace, name)
        mark = Mark(self.cluster, f"{namespace}/{name}", uid)
        await self._do(path, lambda wanted: _update(path, mark, decide, wanted))

    async def remove(self, namespace: str, name: str, uid: str) -> None:
        """Remove the table of a job that is gone, unless it has passed to another; OSError says why not."""
        path = self._path(namespace, name)
        mark = Mark(self.cluster, f"{namespace}/{name}", uid)
        await self._do(path, lambda _wanted: _remove(path, mark))

    async def left_behind(self, is_alive: Callable[[str], bool], namespace: str = "") -> list[Mark]:
        """Our tables of jobs that are gone, in this namespace or in all of them; a UID does not come back."""
        root = Path(self.root)
        found = await self._do(root, lambda _wanted: list(_marks(root)))
        return [
            mark
            for mark in found
            if mark.cluster == self.cluster
            and not is_alive(mark.uid)
            and namespace in {"", mark.job.partition("/")[0]}
        ]

    def _path(self, namespace: str, name: str) -> Path:
        return Path(self.root) / f"{namespace}.{name}"

    async def _do(self, path: Path, work: Callable[[Wanted], T]) -> T:
        """Do it in a thread, within the limit; what comes too late is left undone where that is possible."""
        begun: _Work | None = None
        try:
            async with asyncio.timeout(self.limit_s), self._width:
                while (other := self._busy.get(path)) is not None and not other.overrun:
                    await asyncio.wait([other.answer])
                if other is not None or sum(one.overrun for one in self._busy.values()) >= STUCK:
                    raise OSError(errno.EBUSY, "the storage does not answer", str(path))
                begun = self._busy[path] = _Work(asyncio.get_running_loop().create_future())
                self._start(path, begun, work)
                return cast("T", await begun.answer)
        except TimeoutError as error:
            raise OSError(errno.ETIMEDOUT, f"no answer within {self.limit_s:g} s", str(path)) from error
        finally:
            if begun is not None:
                begun.overrun = True

    def _start(self, path: Path, begun: _Work, work: Callable[[Wanted], object]) -> None:
        loop = asyncio.get_running_loop()

        def settle(result: object, error: BaseException | None) -> None:
            del self._busy[path]
            if begun.answer.done():
                return
            if error is not None:
                begun.answer.set_exception(error)
            else:
                begun.answer.set_result(result)

        def run() -> None:
            result, failed = None, None
            try:
                result = work(lambda: not begun.overrun)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the one who waits hears of it
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, failed)

        threading.Thread(target=run, name="rank-table", daemon=True).start()


# ---------------------------------------------------------------------------------------- in the thread


def _update(path: Path, mark: Mark, decide: Decide, wanted: Wanted) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o755)
    with _opened(path) as folder:
        held = {name: text for name in (HCCL_JSON, VERSION) if (text := _read(folder, name)) is not None}
        content = decide(read_written(held))
        text = msgspec.json.encode(mark).decode()
        if _read(folder, MARK) != text:
            _write(folder, MARK, text, wanted)
        for name, part in (content.data() if content else {}).items():
            _write(folder, name, part, wanted)


def _remove(path: Path, mark: Mark) -> None:
    """Remove the job's own files; whatever else lies in its directory stays, and the directory with it."""
    try:
        with _opened(path) as folder:
            if _mark(folder) != mark:
                return
            own = (HCCL_JSON, VERSION)
            with os.scandir(folder) as entries:
                unfinished = [entry.name for entry in entries if entry.name.startswith(_temporary(own))]
            for name in (*unfinished, *own, MARK):  # the mark last: until then it can be tried again
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):
        path.rmdir()


def _marks(root: Path) -> Iterator[Mark]:
    """The marks of all tables here that lie where they should."""
    try:
        entries = list(os.scandir(root))
    except FileNotFoundError:
        return
    for entry in entries:
        with contextlib.suppress(OSError), _opened(Path(entry.path)) as folder:
            mark = _mark(folder)
            if mark is not None and entry.name == mark.job.replace("/", ".", 1):
                yield mark


def _mark(folder: int) -> Mark | None:
    try:
        return msgspec.json.decode(_read(folder, MARK) or "", type=Mark)
    except msgspec.DecodeError:
        return None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The directory itself, not where a link leads."""
    folder = os.open(path, _READ | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def _read(folder: int, name: str) -> str | None:
    """The content of a regular file; None where there is none."""
    try:
        handle = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", name)
        if found.st_size > LARGEST_BYTES:
            raise OSError(errno.EFBIG, "larger than a rank table can be", name)
        with os.fdopen(handle, "rb", closefd=False) as stream:
            return stream.read(LARGEST_BYTES).decode(errors="replace")
    finally:
        os.close(handle)


def _write(folder: int, name: str, text: str, wanted: Wanted) -> None:
    """Write a file as a whole: a reader sees the old one or the new one, never a part."""
    temporary = f".{name}.{secrets.token_hex(4)}"
    try:
        with os.fdopen(os.open(temporary, _MAKE, 0o644, dir_fd=folder), "w") as stream:
            os.fchmod(stream.fileno(), 0o644)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if wanted():
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)


def _temporary(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f".{name}." for name in names)
