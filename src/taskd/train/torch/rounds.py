"""Checkpoints in the making: whole or not there.

Ranks coordinate through the file system alone, because a checkpoint is also written when no group works any
more. A round (one checkpoint in the making) is a hidden directory, named for run, generation and step. Each
rank adds its parts, each under a name of its own, so that a part that is written twice hurts nobody; who
publishes waits until one of each is there, writes the manifest and moves the directory to its visible name.
All of it is on the disk before that move, so whoever is killed at any byte leaves the old state of things.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import logging
import os
import re
import shutil
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from taskd.train.torch.manifests import (
    MANIFEST,
    CheckpointDamaged,
    Layout,
    Manifest,
    RoundIncomplete,
    check_lengths,
    entries,
    find_latest,
    rank_name,
    some,
    step_name,
)
from taskd.train.torch.statefile import Capture, Seal, read_seal, write_file

ROUND_LIMIT_S = 600.0  # how long parts may be missing while nothing happens
QUIET_S = 900.0  # longer than that: a round of another run in which nothing happens is dead
BEAT_S = 1.0
POLL_S = (0.002, 0.2)  # the first wait and the longest

_LOCK = "lock"
_ROUND = re.compile(r"\.(save|dump)-([\w.-]+)-g(\d+)-step-(\d{8,})")
_OLD = re.compile(r"\.old-[0-9a-f]{32}")
_PART = re.compile(r"((?:shard|rank)-\d{5,})\.([0-9a-f]{32}|state)")
_SKIPPED = re.compile(r"skipped-(\d{5,})")
_EXCHANGE = 2  # RENAME_EXCHANGE

log = logging.getLogger("taskd")


def prepare(root: str | os.PathLike[str]) -> Path:
    """Make the directory for checkpoints if need be, and try whether it can be written to."""
    path = Path(root)
    if not os.fspath(root):
        raise ValueError("the directory for checkpoints has no name")
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"checkpoints go into a directory, but {path} is a file")
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise type(error)(
            error.errno, f"checkpoints cannot be written: {error.strerror}", str(path)
        ) from None
    return path


class Round:
    """One checkpoint while it is made, by any number of processes that share a file system.

    ``run`` is the same for all ranks of a job and another one each time it is launched; a round never takes
    a part that another launch left behind.
    """

    def __init__(
        self, root: Path, layout: Layout, step: int, *, run: str, generation: int, kind: str = "save"
    ) -> None:
        self.root = root
        self.layout = layout
        self.step = step
        self.run = run
        self.generation = generation
        self.kind = kind
        self.path = root / f".{kind}-{_safe(run)}-g{generation}-{step_name(step)}"
        self._dir = -1
        self._lock = -1

    def __enter__(self) -> Self:
        """Open the round, and hold its lock: it says that somebody still works on it."""
        self.path.mkdir(exist_ok=True)
        self._dir = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=self._dir)
        except BaseException:
            os.close(self._dir)
            raise
        with contextlib.suppress(OSError):  # where there are no locks, the times must do
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)
        os.close(self._dir)
        self._lock = self._dir = -1

    @property
    def visible(self) -> Path:
        """Where the checkpoint will be."""
        return self.root / step_name(self.step)

    @property
    def open(self) -> bool:
        """Tell whether it is neither published nor dropped."""
        try:
            return self.path.stat().st_ino == os.fstat(self._dir).st_ino
        except FileNotFoundError:
            return False

    @property
    def given_up(self) -> bool:
        """Tell whether the rank that publishes left it out; cheap enough for thousands that ask."""
        return (self.path / "skipped-00000").exists()

    def add_shard(self, shard: str, capture: Capture) -> None:
        """Write a shard of the state."""
        self._add(self.layout.shard_name(shard), capture)

    def add_rank(self, rank: int, capture: Capture) -> None:
        """Write what one rank alone has; any process that has it may do so."""
        self._add(rank_name(rank), capture)

    def skip(self, rank: int) -> None:
        """Say that a rank does not write its parts this time, so that nobody waits for them."""
        os.close(os.open(f"skipped-{rank:05d}", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=self._dir))

    def missing(self) -> list[str]:
        """Return the names of the parts that are not there yet."""
        have = {found[1] for found in map(_PART.fullmatch, self._names()) if found}
        return [name for name in self.layout.names() if name not in have]

    def skipped(self) -> list[int]:
        """Return the ranks that do not write this time."""
        return [int(found[1]) for found in map(_SKIPPED.fullmatch, self._names()) if found]

    def wait(self, *, limit_s: float = ROUND_LIMIT_S, given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until all parts are there; raises RoundIncomplete if nothing comes any more."""
        pause_s = POLL_S[0]
        news = beat = time.monotonic()
        size = -1
        while missing := self.missing():
            now = time.monotonic()
            if now - beat > BEAT_S:
                beat = now
                with contextlib.suppress(OSError):
                    os.utime(self._lock)
                if (grown := self._size()) != size:
                    size, news = grown, now
            if skipped := self.skipped():
                raise RoundIncomplete(f"{self.visible.name}: rank {skipped[0]} left it out")
            if given_up():
                raise RoundIncomplete(f"{self.visible.name}: given up, {some(missing)} did not come")
            if now - news > limit_s:
                raise RoundIncomplete(
                    f"{self.visible.name}: {some(missing)} did not come for {limit_s:.0f} s; "
                    f"is {self.root} the same directory on all nodes?"
                )
            time.sleep(pause_s)
            pause_s = min(1.3 * pause_s, POLL_S[1])

    def publish(self) -> Path:
        """Make the checkpoint visible, whole and on the disk; it replaces one of the same step, if any."""
        if missing := self.missing():
            raise RoundIncomplete(f"{self.visible.name}: {some(missing)} did not come")
        seals = self._settle()
        manifest = Manifest(self.step, self.run, self.layout, seals)
        draft = f".{MANIFEST}.{uuid.uuid4().hex}"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=self._dir)
        with os.fdopen(fd, "wb") as file:
            file.write(manifest.encode())
            file.flush()
            os.fsync(fd)
        os.rename(draft, MANIFEST, src_dir_fd=self._dir, dst_dir_fd=self._dir)
        _sync_directory(self._dir)
        _put_in_place(self.path, self.visible)
        check_lengths(self.visible)
        return self.visible

    def drop(self) -> None:
        """Give the round up and remove what was written."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _add(self, name: str, capture: Capture) -> None:
        """Write a part and put it into its place, unless there is one: then nothing has to be written."""
        if name not in self.missing():
            return
        token = uuid.uuid4().hex
        draft, part = f".{name}.{token}", f"{name}.{token}"
        try:
            write_file(capture, draft, self._dir)
            if self.open:
                os.rename(draft, part, src_dir_fd=self._dir, dst_dir_fd=self._dir)
                _sync_directory(self._dir)
            done = self.open
        except FileNotFoundError:
            done = False  # somebody published or dropped the round
        except BaseException:
            self._remove(draft, part)
            raise
        if not done:
            # By the open directory: it may have its visible name by now, and a stray file in it is waste.
            self._remove(draft, part)
            if name in self.missing():
                raise RoundIncomplete(f"{self.visible.name}: given up before {name} was written")

    def _remove(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._dir)

    def _names(self) -> list[str]:
        # Through the open directory, whatever its name is by now.
        return os.listdir(self._dir)  # noqa: PTH208 - see above

    def _settle(self) -> dict[str, Seal]:
        """Give one part of each kind its final name and remove the rest; returns what each measures."""
        seals: dict[str, Seal] = {}
        # Backwards: a part that has its name already comes first (the publisher before us was killed).
        for entry in sorted(self._names(), reverse=True):
            found = _PART.fullmatch(entry)
            if found is not None and f"{found[1]}.state" not in seals:
                fd = os.open(entry, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir)
                try:
                    seals[f"{found[1]}.state"] = read_seal(fd)
                finally:
                    os.close(fd)
                os.rename(entry, f"{found[1]}.state", src_dir_fd=self._dir, dst_dir_fd=self._dir)
            else:
                os.unlink(entry, dir_fd=self._dir)
        return seals

    def _size(self) -> int:
        total = 0
        for entry in self._names():
            with contextlib.suppress(FileNotFoundError):
                total += 1 + os.stat(entry, dir_fd=self._dir).st_size
        return total


def sweep(root: Path, run: str, generation: int, *, published: int = -1) -> None:
    """Remove rounds that nobody will finish.

    Of this run: those of earlier generations, and those up to the step that was published. Of other runs:
    those that nobody holds and in which nothing happened for a while, by the file system's own clock.
    """
    now = 0.0
    for path in entries(root):
        found = _ROUND.fullmatch(path.name)
        if found is not None and found[2] == _safe(run):
            dead = int(found[3]) < generation or (int(found[3]) == generation and int(found[4]) <= published)
        else:
            ours = found is not None or _OLD.fullmatch(path.name) is not None
            now = (now or _read_clock(root)) if ours else now
            dead = ours and _is_abandoned(path, now)
        if dead:
            log.info("taskd: %s is what a dead run left, and is removed", path)
            shutil.rmtree(path, ignore_errors=True)


def prune(root: Path, newest: int, keep: int) -> None:
    """Keep so many whole checkpoints up to the newest; older ones go, and never from what can be seen."""
    kept = 0
    for step, path in find_latest(root):
        if step > newest:
            continue
        try:
            check_lengths(path)
        except CheckpointDamaged:
            if kept < keep or not _is_ours(path):
                continue  # it does not count
        else:
            kept += 1
            if kept <= keep:
                continue
        aside = root / f".old-{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    """Tell whether a directory has a manifest of ours; others have steps too."""
    try:
        Manifest.of(path)
    except CheckpointDamaged:
        return False
    return True


# --- the file system


def _safe(run: str) -> str:
    """Return a run's name as a part of a file name; two names never become one."""
    safe = re.sub(r"[^\w.-]", "_", run, flags=re.ASCII)[:100]
    return safe if safe == run else f"{safe}.{zlib.crc32(run.encode()):08x}"


def _sync_directory(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # some file systems have nothing to do there
            raise


def _put_in_place(draft: Path, visible: Path) -> None:
    """Move a directory to its visible name in one step, also where there is one of that name already."""
    try:
        draft.rename(visible)
        replaced = False
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        _exchange(draft, visible)
        replaced = True
    fd = os.open(visible.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync_directory(fd)
    finally:
        os.close(fd)
    if replaced:
        shutil.rmtree(draft, ignore_errors=True)


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return function


def _exchange(left: Path, right: Path) -> None:
    """Let two directories change their names; where the kernel cannot, with a moment without the second."""
    here = -100  # AT_FDCWD
    function = _renameat2()
    if function is not None:
        if function(here, os.fsencode(left), here, os.fsencode(right), _EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}:
            raise OSError(code, os.strerror(code), str(right))
    aside = right.with_name(f".old-{uuid.uuid4().hex}")
    right.rename(aside)
    left.rename(right)
    aside.rename(left)


def _read_clock(root: Path) -> float:
    """Return the time of the file system's clock; another machine's may be the one that counts."""
    with tempfile.TemporaryFile(dir=root) as probe:
        return os.fstat(probe.fileno()).st_mtime


def _is_abandoned(path: Path, now: float) -> bool:
    """Tell whether nobody works on a round any more: nobody holds its lock, and nothing happens in it."""
    try:
        newest = max(entry.stat().st_mtime for entry in [path, *path.iterdir()])
        if now - newest < QUIET_S:
            return False
        with (path / _LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return path.exists()  # no lock was made yet or it is gone already: its time has decided
    except OSError:
        return False
    return True
