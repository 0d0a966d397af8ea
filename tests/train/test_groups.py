"""Groups that stay the same objects, the notes of a script's beginning, and the hook on torch."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed import Work, distributed_c10d

from taskd.train.torch.devices import find
from taskd.train.torch.fence import SocketFence
from taskd.train.torch.groups import GroupGone, Groups, StableGroup
from taskd.train.torch.hooks import hook_groups
from taskd.train.torch.notes import Alone, Noting, NotNoted, Origin, SetupNotes
from taskd.train.torch.works import COLLECTIVES

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
        for name in ("rendezvous", "_new_process_group_helper", "broadcast_object_list"):
            monkeypatch.setattr(c10d, name, getattr(c10d, name))
        monkeypatch.setattr(dist, "broadcast_object_list", dist.broadcast_object_list)
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


def test_no_collective_of_a_group_that_was_left_is_kept(world: World) -> None:
    """It would keep the group's connections, and gloo's thread busy with them, until the next one begins."""
    groups = world.begin()
    world.meet()
    groups.together(2, dist.HashStore())
    dist.all_reduce(torch.ones(1))
    assert groups._works._works

    groups.leave()

    end = time.monotonic() + 10
    while groups._works._works:
        assert time.monotonic() < end
        time.sleep(0.01)


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


def one(value: int) -> torch.Tensor:
    return torch.tensor([value])


def all_reduce(value: int, group: Any = None) -> Any:
    given = one(value)
    dist.all_reduce(given, group=group)
    return given


def scatter(value: int) -> Any:
    got = one(0)
    dist.scatter(got, [one(value)])
    return got


def gather(value: int) -> Any:
    got = [one(0)]
    dist.gather(one(value), got)
    return got[0]


def all_to_all(value: int) -> Any:
    got = one(0)
    dist.all_to_all_single(got, one(value))
    return got


def reduce_scatter(value: int) -> Any:
    got = one(0)
    dist.reduce_scatter(got, [one(value)])
    return got


def all_gather_object(value: int) -> Any:
    got: list[Any] = [None]
    dist.all_gather_object(got, "." * value)
    return len(got[0])


def scatter_object(value: int) -> Any:
    got: list[Any] = [None]
    dist.scatter_object_list(got, ["." * value])
    return len(got[0])


def functional_all_reduce(value: int) -> Any:
    from torch.distributed import _functional_collectives as functional

    return functional.all_reduce(one(value), "sum", dist.group.WORLD)


def dtensor(value: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    return distribute_tensor(one(value), mesh["tp"], [Replicate()]).full_tensor()


def large(value: int) -> Any:
    """More than a weight may have, and not a weight: the order of the samples, say."""
    given = torch.full((256 * 1024,), value)
    dist.broadcast(given, 0)
    return given[-1]


CALLS: list[Callable[[int], Any]] = [
    *(all_reduce, scatter, gather, all_to_all, reduce_scatter, all_gather_object, scatter_object),
    *(functional_all_reduce, dtensor, large, lambda value: all_reduce(value, dist.new_group([0]))),
]


def test_whatever_a_script_asks_is_noted(world: World) -> None:
    """A replacement gets the old answers, whatever it would say itself by now."""
    groups = world.begin()
    world.meet()
    assert [7] * len(CALLS) == [int(call(7)) for call in CALLS]
    groups.set_up()
    dist.destroy_process_group()

    world.begin(alone=True)
    world.meet()

    assert [7] * len(CALLS) == [int(call(3)) for call in CALLS]


def test_who_told_the_others_remembers_what(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that rank 0 made up and told the others is not made up again by its replacement."""
    groups = world.begin()
    world.meet()
    dist.broadcast_object_list(["a name"])
    groups.set_up()
    dist.destroy_process_group()

    monkeypatch.setenv("WORLD_SIZE", "2")
    world.begin(alone=True)
    world.meet()
    made_up = ["another name"]
    dist.broadcast_object_list(made_up, src=0)

    assert ["a name"] == made_up


def test_what_was_too_large_for_a_note_is_not_guessed(world: World, monkeypatch: Any) -> None:
    """Numbers that are no weights come from the notes, or the replacement says why not."""
    monkeypatch.setattr("taskd.train.torch.notes.KEEP_ALL_BYTES", 1024)
    groups = world.begin()
    world.meet()
    large(7)
    groups.set_up()
    dist.destroy_process_group()

    world.begin(alone=True)
    world.meet()
    with pytest.raises(NotNoted, match="too large"):
        large(3)


class Message(Work):
    """Something that arrives when it is waited for."""

    def __init__(self, into: torch.Tensor, value: int) -> None:
        super().__init__()
        self._into, self._value = into, value

    def wait(self, *_: Any) -> bool:
        self._into.fill_(self._value)
        return True


class Peer:
    """A group in which every rank sends its number."""

    def recv(self, tensors: list[torch.Tensor], source: int, _tag: int) -> Message:
        return Message(tensors[0], source)


def test_messages_are_noted_by_who_sent_them(world: World) -> None:
    """Nothing is waited for before the script does, and each message is its sender's in the replacement."""
    notes = SetupNotes(world.path, Origin(1, 0, 3))
    first, second = one(0), one(0)
    works = [Noting(Peer(), notes, "0").recv([into], rank, 0) for into, rank in ((first, 1), (second, 2))]
    assert [0, 0] == [first.item(), second.item()]
    for work in reversed(works):
        work.wait()
    notes.save()

    alone = Alone(SetupNotes(world.path, Origin(1, 0, 3)), "0")
    alone.send([one(5)], 1, 0).wait()
    for rank in (2, 1):
        into = one(0)
        alone.recv([into], rank, 0).wait()
        assert rank == into.item()
    with pytest.raises(NotNoted):
        alone.recv([one(0)], 1, 0)


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


def test_a_rank_without_notes_takes_away_none_that_are_kept(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A replacement that asked nothing has none; only where there are no older ones is that worth a word."""
    mine = SetupNotes(world.path, Origin(1, 1, 4))
    mine.take("broadcast", "0", [torch.tensor([5])])
    mine.save()
    keeper = SetupNotes(world.path, Origin(1, 3, 4))
    keeper.keep(1, b"\0")

    assert (True, "") == (keeper.has(1), caplog.text)
    keeper.keep(2, b"\0")
    assert "rank 2 has no notes that could be kept elsewhere" in caplog.text


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
