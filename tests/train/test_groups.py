"""Groups that stay the same objects, the notes of a script's beginning, and the hook on torch."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed import distributed_c10d

from taskd.train.torch.devices import find
from taskd.train.torch.fence import SocketFence
from taskd.train.torch.groups import COLLECTIVES, GroupGone, Groups, StableGroup
from taskd.train.torch.hooks import hook_groups
from taskd.train.torch.notes import NotNoted, Origin, SetupNotes

dist: Any = torch.distributed  # its stores are exported, but not for the type checker
c10d: Any = distributed_c10d

# What moves no data between ranks, or is not for a script's groups.
NO_COLLECTIVES = {"reconfigure", "_end_coalescing", "_register_on_completion_hook"}


class World:
    """A job of one rank, whose script makes its groups under our eyes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._patch = monkeypatch
        self.path = tmp_path
        self.generation = 1
        self.fence = SocketFence()
        self.groups: Groups | None = None
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "0")
        for name in ("rendezvous", "_new_process_group_helper"):
            monkeypatch.setattr(c10d, name, getattr(c10d, name))
        hook_groups(lambda: self.groups)

    def begin(self, *, alone: bool = False) -> Groups:
        notes = SetupNotes(self.path, Origin(1, 0, 1))
        self.groups = Groups(self.fence, lambda: self.generation, notes, alone=alone)
        return self.groups

    def meet(self) -> None:
        """Make groups as a script does."""
        dist.init_process_group("gloo", timeout=timedelta(seconds=20))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    yield World(monkeypatch, tmp_path)
    if dist.is_initialized():
        dist.destroy_process_group()


def test_whatever_moves_data_is_passed_on() -> None:
    """A version of torch with a further collective fails here, not in a user's run."""
    moving = {
        name
        for name, thing in vars(dist.ProcessGroup).items()
        if callable(thing) and "Work" in (thing.__doc__ or "") and name not in NO_COLLECTIVES
    }

    assert set() == moving - set(COLLECTIVES)


def test_the_scripts_group_stays_the_same_object(world: World) -> None:
    """Between two generations it refuses; afterwards it has another group behind it."""
    groups = world.begin()
    world.meet()
    held, sub = dist.group.WORLD, dist.new_group([0])
    first = held.inner
    groups.set_up()

    groups.leave()
    with pytest.raises(GroupGone):
        dist.all_reduce(torch.ones(1))
    groups.together(2, dist.HashStore())

    assert isinstance(held, StableGroup)
    assert dist.group.WORLD is held
    assert first is not held.inner
    assert "gloo" == dist.get_backend(sub)
    for group in (held, sub):
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        assert [1, 1] == x.tolist()
    assert [0] == dist.get_process_group_ranks(sub)


def test_a_group_that_the_script_destroyed_is_not_made_again(world: World, monkeypatch: Any) -> None:
    groups = world.begin()
    world.meet()
    dist.destroy_process_group(dist.new_group([0]))
    made: list[int] = []
    gloo = find("gloo")
    own = gloo.make_backend

    def noted(store: Any, rank: int, *more: Any) -> Any:
        made.append(rank)
        return own(store, rank, *more)

    monkeypatch.setattr(gloo, "make_backend", noted)

    groups.leave()
    groups.together(2, dist.HashStore())

    assert [0] == made


def test_a_world_of_the_scripts_own_is_left_alone(world: World) -> None:
    """It gave a store of its own: torch makes the group, and recovery sees that it is not one of ours."""
    groups = world.begin()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    assert groups.foreign
    assert not isinstance(dist.group.WORLD, StableGroup)


def test_functional_collectives_find_the_group_by_its_name(world: World) -> None:
    """DTensor and compiled code know a group by its name, and call it from C++."""
    from torch.distributed import _functional_collectives as functional

    world.begin()
    world.meet()

    summed = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)

    assert [1, 1, 1] == summed.tolist()


def test_a_replacement_gets_what_its_predecessor_got(world: World) -> None:
    """Seeds and names come from the notes; nobody else is asked."""
    groups = world.begin()
    world.meet()
    seed, weights = torch.tensor([7]), torch.ones(1024 * 1024)
    dist.broadcast(seed, 0)
    dist.broadcast(weights, 0)
    groups.set_up()
    dist.destroy_process_group()

    world.begin(alone=True)
    world.meet()
    seed, weights = torch.tensor([0]), torch.zeros(1024 * 1024)
    dist.broadcast(seed, 0)
    dist.broadcast(weights, 0)
    dist.barrier()

    assert [7] == seed.tolist()
    assert 0 == weights.sum()  # they come with the registered state


def test_notes_of_another_start_or_damaged_ones_are_not_used(world: World) -> None:
    """They say whose they are; what does not fit is as good as no notes."""
    mine = Origin(2, 1, 4)
    notes = SetupNotes(world.path, mine)
    notes.take("broadcast", "0", [torch.tensor([7])])
    notes.save()
    kept = notes.export()

    assert SetupNotes(world.path, mine).repeat("broadcast", "0", [torch.tensor([0])])
    for other in (Origin(3, 1, 4), Origin(2, 1, 2)):
        assert b"" == SetupNotes(world.path, other).export()
    SetupNotes(world.path, Origin(2, 3, 4)).keep(1, kept[:-1] + b"!")
    assert kept == notes.export()
    (world.path / "rank-1.setup").write_bytes(kept[:-1] + b"!")
    assert b"" == notes.export()
    fetched = SetupNotes(world.path, mine, lambda is_whole: kept if is_whole(kept) else b"")
    assert fetched.repeat("broadcast", "0", [torch.tensor([0])])
    assert kept == notes.export()  # for whoever comes next


def test_a_replacement_without_notes_does_not_guess_a_seed(world: World) -> None:
    """Weights may be anything until the state comes; a number that all must agree on may not."""
    world.begin(alone=True)
    world.meet()

    dist.broadcast(torch.zeros(3), 0)
    with pytest.raises(NotNoted, match="broadcast"):
        dist.broadcast(torch.tensor([3]), 0)


def test_the_hook_waits_for_torch() -> None:
    """Joining loads no torch; when the script does, its groups are ours, whatever name it imported."""
    script = """
import sys
from taskd.train.torch.hooks import hook_groups
asked = []
hook_groups(lambda: asked.append(1))
assert "torch" not in sys.modules
from torch.distributed import init_process_group, distributed_c10d
assert distributed_c10d.rendezvous.__module__ == "taskd.train.torch.hooks"
import os
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
init_process_group("gloo")
print(len(asked))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )

    assert "1\n" == done.stdout, done.stderr
