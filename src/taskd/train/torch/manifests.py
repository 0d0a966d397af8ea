"""What a checkpoint consists of, and where it is.

A checkpoint is a directory ``step-00000123``: one file for each shard of the state, one small file for each
rank, and a manifest that names every file with its length and checksum. The number is how many steps count.
"""

import json
import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from taskd.train.torch.statefile import Capture, FileDamaged, Seal, read_seal

# Another one whenever something in the files is read in another way. That includes what belongs to a rank,
# which is plain bytes here: its parts are in ``own``, and read by another version they would be nonsense.
FORMAT = 2
MANIFEST = "manifest.json"

_STEP = re.compile(r"step-(\d{8,})")


class CheckpointError(RuntimeError):
    """Something is wrong with a checkpoint, or with the wish for one."""


class CheckpointDamaged(CheckpointError):
    """This checkpoint is not whole."""


class FormatDiffers(CheckpointDamaged):
    """Another version of TaskD wrote it; it is whole, and of no use here."""


class LayoutDiffers(CheckpointError):
    """The checkpoint was written by a job of another shape."""


class RoundIncomplete(CheckpointError):
    """Not all parts of a checkpoint came; nothing was made visible."""


@dataclass(frozen=True)
class Layout:
    """Which shard of the state each rank holds; ranks with the same one are replicas of each other."""

    shards: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.shards)

    @cached_property
    def keys(self) -> dict[str, int]:
        """The shards, in the order of their first rank, each with its number."""
        return {shard: number for number, shard in enumerate(dict.fromkeys(self.shards))}

    def owner(self, shard: str) -> int:
        """Return the rank that writes a shard when nothing else is said: the first that has it."""
        return self.shards.index(shard)

    def shard_name(self, shard: str) -> str:
        """Return the name of a shard's file, without its ending."""
        return f"shard-{self.keys[shard]:05d}"

    def names(self) -> list[str]:
        """Return the names of all files but the manifest, without their ending."""
        return [self.shard_name(shard) for shard in self.keys] + [
            rank_name(rank) for rank in range(self.world_size)
        ]

    def __str__(self) -> str:
        shards = len(self.keys)
        return f"{self.world_size} ranks with {shards} shard{'s' if shards > 1 else ''}"


@dataclass(frozen=True, slots=True)
class RankState:
    """What belongs to one rank: its random state and buffers, and its place in the data.

    ``told`` is how many steps its script was told of, where that may be more than the checkpoint has.
    """

    own: bytes
    position: int
    loader: Any = None
    told: int = 0

    def capture(self) -> Capture:
        """Make it ready to be written."""
        told = {"told": self.told} if self.told else {}
        return Capture({"own": self.own, "position": self.position, "loader": self.loader, **told})


def rank_name(rank: int) -> str:
    """Return the name of a rank's file, without its ending."""
    return f"rank-{rank:05d}"


def step_name(step: int) -> str:
    """Return the name of a checkpoint's directory."""
    return f"step-{step:08d}"


def find_latest(root: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """Return the visible checkpoints, by step, the newest first; nothing is said about their contents."""
    found = [(match, path) for path in entries(Path(root)) if (match := _STEP.fullmatch(path.name))]
    return sorted(((int(match[1]), path) for match, path in found), reverse=True)


def entries(root: Path) -> list[Path]:
    """Return what is in a directory; nothing if there is none."""
    try:
        return list(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint consists of."""

    step: int
    run: str
    layout: Layout
    files: Mapping[str, Seal]

    def encode(self) -> bytes:
        """Return it as JSON, with a checksum over itself."""
        body = {
            "format": FORMAT,
            "step": self.step,
            "run": self.run,
            "world_size": self.layout.world_size,
            "ranks": [
                {"shard": shard, "shard_file": f"{self.layout.shard_name(shard)}.state", "file": file}
                for shard, file in zip(
                    self.layout.shards,
                    (f"{rank_name(rank)}.state" for rank in range(self.layout.world_size)),
                    strict=True,
                )
            ],
            "files": {
                name: {"length": seal.length, "checksum": f"{seal.checksum:08x}"}
                for name, seal in sorted(self.files.items())
            },
        }
        return json.dumps({**body, "seal": _seal_of(body)}, indent=1).encode() + b"\n"

    @classmethod
    def of(cls, directory: Path, dir_fd: int | None = None) -> Self:
        """Read and check that of a checkpoint; through the open directory, if there is one."""
        try:
            name = os.fspath(directory / MANIFEST) if dir_fd is None else MANIFEST
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
            with os.fdopen(fd, "rb") as file:
                body = json.loads(file.read())
            seal = body.pop("seal")
            version = int(body["format"])
            if seal == _seal_of(body) and version == FORMAT:
                layout = Layout(tuple(rank["shard"] for rank in body["ranks"]))
                files = {
                    name: Seal(entry["length"], int(entry["checksum"], 16))
                    for name, entry in body["files"].items()
                }
                return cls(body["step"], body["run"], layout, files)
        except FileNotFoundError:
            raise CheckpointDamaged(f"{directory} has no {MANIFEST}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"{directory / MANIFEST} cannot be read: {error}") from error
        if seal != _seal_of(body):
            raise CheckpointDamaged(f"{directory / MANIFEST} is damaged: its checksum is wrong")
        raise FormatDiffers(
            f"{directory} was written by {'an older' if version < FORMAT else 'a later'} version of TaskD: "
            f"it has format {version}, and this version reads format {FORMAT}; go on with that version, "
            "or begin anew with another directory"
        )


def _seal_of(body: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(body, sort_keys=True).encode()):08x}"


def check_lengths(path: Path) -> Manifest:
    """See whether all that the manifest names is there and has the right end; reads next to nothing."""
    manifest = Manifest.of(path)
    for name, seal in manifest.files.items():
        try:
            fd = os.open(path / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = read_seal(fd)
            finally:
                os.close(fd)
        except (OSError, FileDamaged) as error:
            raise CheckpointDamaged(f"{path / name} cannot be used: {error}") from error
        if found != seal:
            raise CheckpointDamaged(f"{path / name} is not the file that the manifest names")
    return manifest


def some(names: Sequence[str]) -> str:
    """Name the first few of many."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 - enough to find it
    return ", ".join(names[:3]) + more
