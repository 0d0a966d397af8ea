import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel, distributed

from taskd.train.torch.wrapping import Handle, HandleEmpty, bucket_layout, building, current
from tests.train.crew import run_crew

dist: Any = torch.distributed  # its stores are exported, but not for the type checker


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_wrapper_that_is_built_again_changes_no_bit(tmp_path: Path) -> None:
    """With four ranks the order of a sum depends on the bucket layout; torch's own changes, ours does not.

    (With two it does not depend on anything, so this cannot be shown with two.)
    """
    results = run_crew("wrapping_ranks.py", 4, tmp_path)

    for result in results.values():
        for name in ("fixed", "views", "static", "unused"):
            assert result[name]["constant"], name
            assert result[name]["buckets"] >= 4
            assert result[name]["whole"] == result[name]["again"], name
            assert results[0][name]["whole"] == result[name]["whole"]
        assert not result["torch"]["constant"]
        assert result["torch"]["whole"] != result["torch"]["again"]
        assert result["torch"]["last"] == result["fixed"]["last"]
        assert result["hooked"]
        assert result["failed"]
    assert [[True, False]] * 3 == [results[rank]["broadcast"] for rank in (1, 2, 3)]


@pytest.mark.usefixtures("group")
def test_everything_is_as_before_after_a_failing_builder() -> None:
    names = ("_verify_param_shape_across_processes", "_sync_module_states")
    ddp: Any = DistributedDataParallel
    before = [ddp.__init__, ddp._build_params_for_reducer, *(getattr(distributed, name) for name in names)]

    with pytest.raises(ValueError, match="the user's"), building(sync=False):
        raise ValueError("the user's")

    after = [ddp.__init__, ddp._build_params_for_reducer, *(getattr(distributed, name) for name in names)]
    assert before == after


@pytest.mark.usefixtures("group")
def test_the_layout_is_settled_before_the_first_step() -> None:
    """In the order in which gradients arrive, so that communication overlaps with the backward pass."""
    net = nn.Sequential(*[nn.Linear(300, 300, bias=False) for _ in range(8)])
    with building(sync=True):
        ddp = DistributedDataParallel(net, bucket_cap_mb=1)

    assert [
        ["7.weight", "6.weight", "5.weight"],
        ["4.weight", "3.weight", "2.weight"],
        ["1.weight", "0.weight"],
    ] == (bucket_layout(ddp))


@pytest.mark.usefixtures("group")
def test_outside_the_block_torch_does_what_it_does() -> None:
    net = nn.Sequential(*[nn.Linear(300, 300, bias=False) for _ in range(8)])
    with building(sync=True):
        pass

    assert 1 == len(bucket_layout(DistributedDataParallel(net, bucket_cap_mb=1)))


@pytest.mark.usefixtures("group")
def test_a_handle_stands_for_its_wrapper() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout())
    handle = Handle(DistributedDataParallel(net))

    assert isinstance(handle, nn.Module)
    assert isinstance(handle, DistributedDataParallel)
    assert handle.module is net
    assert (5, 3) == handle(torch.ones(5, 3)).shape
    assert [id(p) for p in net.parameters()] == [id(p) for p in handle.parameters()]
    assert ["module.0.weight", "module.0.bias"] == [name for name, _ in handle.named_parameters()]
    assert not handle.eval().training
    assert not net[1].training
    handle.train()
    with handle.no_sync():
        assert not handle.require_backward_grad_sync
    handle.mark = 7
    assert 7 == current(handle).mark
    assert repr(current(handle)) == repr(handle)
    assert handle.state_dict().keys() == current(handle).state_dict().keys()
    assert isinstance(copy.copy(handle), DistributedDataParallel)


def test_a_handle_follows_to_the_next_wrapper() -> None:
    """The mode is carried over, and parameters stay under one name where the handle is a child."""
    net = nn.Linear(3, 3)
    handle = Handle(nn.Sequential(net))
    handle.eval()
    outer: Any = nn.Module()
    outer.child = handle

    handle.clear()
    with pytest.raises(HandleEmpty):
        handle(torch.ones(1, 3))
    assert not isinstance(handle, nn.Module)
    handle.set(nn.Sequential(net))

    assert not handle.training
    assert ["child.0.weight", "child.0.bias"] == [name for name, _ in outer.named_parameters()]


@pytest.mark.usefixtures("group")
def test_a_communication_hook_goes_to_the_next_wrapper_too() -> None:
    """Else the survivors of a fault would reduce other numbers than the one that is new."""
    model = nn.Linear(2, 2)
    called: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - torch looks at annotations
        state.append(1)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    handle = Handle(DistributedDataParallel(model))
    handle.register_comm_hook(called, hook)
    handle(torch.ones(2)).sum().backward()
    handle.clear()
    handle.set(DistributedDataParallel(model))
    handle(torch.ones(2)).sum().backward()

    assert [1, 1] == called


def test_an_empty_handle_says_so() -> None:
    handle = Handle()

    assert "no wrapper" in repr(handle)
    with pytest.raises(HandleEmpty):
        handle.parameters()
    handle.clear()
