"""Reading checkpoints: nothing is believed that was not compared.

Length and checksum of every file that a rank needs are compared before anything is loaded, and an older
checkpoint is taken when a newer one is damaged. All ranks must take the same one, so each says what it can
read, and one pure function chooses.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from taskd.train.torch.exchange import Stateful
from taskd.train.torch.loading import load_state
from taskd.train.torch.manifests import (
    CheckpointDamaged,
    CheckpointError,
    FormatDiffers,
    Layout,
    LayoutDiffers,
    Manifest,
    RankState,
    check_lengths,
    find_latest,
    rank_name,
    some,
    step_name,
)
from taskd.train.torch.spread import Meshes
from taskd.train.torch.statefile import FileDamaged, Seal, States, check_file, read_file

NONE_WHOLE = -1  # what a rank offers that sees checkpoints and can read none of them

log = logging.getLogger("taskd")


class Offer:
    """A checkpoint of which all that this rank needs was found whole; its files stay open until closed."""

    def __init__(self, path: Path, layout: Layout, rank: int) -> None:
        """Compare every needed file with the manifest.

        Raises CheckpointDamaged, or LayoutDiffers for a checkpoint of a job of another shape.
        """
        self.path = path
        self._files: dict[str, tuple[int, Seal]] = {}
        try:
            dir_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointDamaged(f"{path} cannot be read: {error.strerror}") from error
        try:
            manifest = Manifest.of(path, dir_fd)
            self.step = manifest.step
            _compare(path, manifest.layout, layout)
            self._names = f"{layout.shard_name(layout.shards[rank])}.state", f"{rank_name(rank)}.state"
            for name in self._names:
                self._open(manifest, name, dir_fd)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(dir_fd)

    def load(self, objects: Mapping[str, Stateful]) -> RankState:
        """Load the shard into these objects and return what belongs to the rank.

        Nothing is loaded before all is read and compared again.
        """
        shard, rank = (self._read(name) for name in self._names)
        if shard.names != set(objects):
            have = sorted(shard.names)
            raise LayoutDiffers(f"{self.path} has the state of {have}, but {sorted(objects)} are registered")
        meshes = Meshes(objects.values())
        for name, thing in objects.items():
            try:
                # One at a time: a device holds one object's state twice, not everybody's.
                load_state(thing, shard.load(name, meshes))
            except Exception as error:
                error.add_note(f"while the state of {name!r} was loaded from {self.path}")
                raise
        told = rank.load("told") if "told" in rank.names else 0
        return RankState(rank.load("own"), rank.load("position"), rank.load("loader"), told)

    def close(self) -> None:
        """Close the files."""
        for fd, _ in self._files.values():
            os.close(fd)
        self._files = {}

    def _open(self, manifest: Manifest, name: str, dir_fd: int) -> None:
        try:
            seal = manifest.files[name]
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
            self._files[name] = fd, seal
            check_file(fd, seal)
        except KeyError:
            raise CheckpointDamaged(f"{self.path / name} is not in the manifest") from None
        except OSError as error:
            raise CheckpointDamaged(f"{self.path / name} cannot be read: {error.strerror}") from error
        except FileDamaged as error:
            raise CheckpointDamaged(f"{self.path / name} is damaged: {error}") from error

    def _read(self, name: str) -> States:
        fd, seal = self._files[name]
        try:
            return read_file(fd, seal)
        except FileDamaged as error:
            raise CheckpointDamaged(f"{self.path / name} cannot be used: {error}") from error


def find_offers(
    root: str | os.PathLike[str], layout: Layout, rank: int, *, enough: int | None = 2
) -> list[Offer]:
    """Return the checkpoints that this rank can read whole, the newest first, and no more than ``enough``.

    What is damaged is passed over, and it is said what and why. A job of another shape is an error, not
    damage: an older checkpoint would have the same shape, and starting anew would waste the run. So is it if
    all are of another version; that is in the manifests, so all ranks come to it.
    """
    offers: list[Offer] = []
    unusable: list[CheckpointDamaged] = []
    for _, path in find_latest(root):
        if enough is not None and len(offers) >= enough:
            break
        try:
            offers.append(Offer(path, layout, rank))
        except CheckpointDamaged as damage:
            unusable.append(damage)
            log.warning("taskd: a checkpoint is not used: %s", damage)
        except BaseException:
            _close(offers)
            raise
    if unusable and not offers and all(isinstance(each, FormatDiffers) for each in unusable):
        raise unusable[0]
    return offers


def choose(offers: Mapping[int, Sequence[int]]) -> int | None:
    """Decide which checkpoint all ranks take: the highest step that every one of them can read whole."""
    sets = [{step for step in steps if step >= 0} for steps in offers.values()]
    return max(set.intersection(*sets), default=None) if sets else None


def agree(
    root: str | os.PathLike[str],
    layout: Layout,
    rank: int,
    gather: Callable[[list[int]], Mapping[int, Sequence[int]]],
) -> Offer | None:
    """Find the checkpoint that all ranks take; None if there is none at all.

    ``gather`` gives every rank's steps to every rank, and is called once or twice, on all ranks alike: the
    second time with all that can be read, if the newest two of each have none in common.
    """
    for enough in (2, None):
        mine = find_offers(root, layout, rank, enough=enough)
        try:
            steps = gather([offer.step for offer in mine] or [NONE_WHOLE] * bool(find_latest(root)))
        except BaseException:
            _close(mine)
            raise
        step = choose(steps)
        _close([offer for offer in mine if offer.step != step])
        if step is not None:
            _tell_taken(Path(root), step)
            return next(offer for offer in mine if offer.step == step)
        if not any(steps.values()):
            return None
    who = [f"rank {rank}" for rank, have in sorted(steps.items()) if not any(step >= 0 for step in have)]
    whose = f"; {some(who)} can read none" if who else ""
    raise CheckpointError(f"there are checkpoints in {root}, but none that all ranks can read whole{whose}")


def load(
    root: str | os.PathLike[str], objects: Mapping[str, Stateful], *, layout: Layout, rank: int
) -> tuple[int, RankState] | None:
    """Load the newest whole checkpoint in a process that asks no others; None if there is none."""
    offer = agree(root, layout, rank, lambda steps: {rank: steps})
    if offer is None:
        return None
    try:
        return offer.step, offer.load(objects)
    finally:
        offer.close()


def check_whole(path: Path) -> Manifest:
    """Compare every file of a checkpoint with its manifest; raises CheckpointDamaged."""
    manifest = check_lengths(path)
    for name, seal in manifest.files.items():
        fd = os.open(path / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            check_file(fd, seal)
        except FileDamaged as error:
            raise CheckpointDamaged(f"{path / name} is damaged: {error}") from error
        finally:
            os.close(fd)
    return manifest


def _compare(path: Path, theirs: Layout, ours: Layout) -> None:
    if theirs == ours:
        return
    if str(theirs) != str(ours):
        raise LayoutDiffers(f"{path} was written by {theirs}, and this job has {ours}")
    rank = next(rank for rank in range(ours.world_size) if theirs.shards[rank] != ours.shards[rank])
    raise LayoutDiffers(
        f"{path} was written by {theirs}, as many as this job has, but rank {rank} held shard "
        f"{theirs.shards[rank]!r} and holds {ours.shards[rank]!r} now"
    )


def _tell_taken(root: Path, step: int) -> None:
    newest = find_latest(root)
    if newest and newest[0][0] != step:
        log.warning("taskd: %s is taken instead of %s", step_name(step), newest[0][1].name)


def _close(offers: Sequence[Offer]) -> None:
    for offer in offers:
        offer.close()
