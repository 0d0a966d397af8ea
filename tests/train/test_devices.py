import sys
import threading
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

from taskd.train.torch import devices
from taskd.train.torch.devices import Damage, Device
from taskd.train.torch.devices.hccl import DeviceStuck

dist: Any = torch.distributed  # its stores are exported, but not for the type checker
LIMIT = timedelta(seconds=30)


def make_two(device: Device, store: Any) -> list[Any]:
    """Make a group of two in one process, each member by a thread of its own."""
    made: list[Any] = [None, None]

    def make(rank: int) -> None:
        made[rank] = device.make_backend(dist.PrefixStore("0", store), rank, 2, LIMIT)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return made


def all_reduce(backends: list[Any]) -> list[float]:
    tensors = [torch.ones(3) * (rank + 1) for rank in range(len(backends))]
    options = dist.AllreduceOptions()
    works = [backend.allreduce([tensor], options) for backend, tensor in zip(backends, tensors, strict=True)]
    for work in works:
        work.wait()
    return [float(tensor[0]) for tensor in tensors]


def test_every_backend_is_a_device() -> None:
    for name in devices.NAMES:
        device = devices.find(name)
        assert (name, device) == (device.name, devices.find(name))
    with pytest.raises(ValueError, match="mpi"):
        devices.find("mpi")


def test_a_call_that_waits_in_gloo_is_interrupted_and_a_new_backend_works() -> None:
    """The other member never calls; without the interruption this would take the timeout of 30 s."""
    device = devices.find("gloo")
    first = make_two(device, dist.HashStore())
    assert [3.0, 3.0] == all_reduce(first)
    errors: list[Exception] = []
    waiting = threading.Event()

    def wait() -> None:
        work = first[0].allreduce([torch.ones(3)], dist.AllreduceOptions())
        waiting.set()
        try:
            work.wait()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(10)
    device.interrupt(first[0])
    thread.join(10)
    assert (False, 1) == (thread.is_alive(), len(errors))

    for backend in first:
        device.close(backend)
        device.interrupt(backend)  # late, and twice: no harm
    assert not device.must_restart
    assert [3.0, 3.0] == all_reduce(make_two(device, dist.HashStore()))


def test_nccl_is_made_with_its_watchdog_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables are as before when it is made: they are the user's."""
    import os

    seen: dict[str, str] = {}

    class Group:
        class Options:
            _timeout: Any = None

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            seen.update(os.environ, timeout=str(options._timeout))

    monkeypatch.setattr(dist, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    monkeypatch.delenv("TORCH_NCCL_ENABLE_MONITORING", raising=False)

    devices.find("nccl").make_backend(None, 0, 1, LIMIT)

    assert ("0", "0", "0:00:30") == (
        seen["TORCH_NCCL_ASYNC_ERROR_HANDLING"],
        seen["TORCH_NCCL_ENABLE_MONITORING"],
        seen["timeout"],
    )
    assert "1" == os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
    assert "TORCH_NCCL_ENABLE_MONITORING" not in os.environ


class RecordedNpu(ModuleType):
    """torch_npu as far as it is documented: it records the calls, and a stopped device does nothing."""

    def __init__(self) -> None:
        super().__init__("torch_npu")
        self.calls: list[str] = []
        self.stopped = False
        self.answers: dict[str, Any] = {}
        recorder = self

        class Options:
            _timeout: Any = None

        class ProcessGroupHCCL:
            def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
                if recorder.stopped:
                    raise RuntimeError("FORCE STOP")
                recorder.calls.append(f"make {rank} of {size}, {options._timeout}")

            def _delete_tcpstore_key(self) -> None:
                recorder.calls.append("delete key")

            def abort_hccl_comm(self, reason: str) -> None:
                recorder.calls.append(f"abort {reason}")

        ProcessGroupHCCL.Options = Options  # type: ignore[attr-defined]
        self._C = SimpleNamespace(_distributed_c10d=SimpleNamespace(ProcessGroupHCCL=ProcessGroupHCCL))
        self.npu = SimpleNamespace(
            current_device=lambda: 5,
            stop_device=lambda device: self.note("stop_device", device, stopped=True),
            restart_device=lambda device: self.note("restart_device", device, stopped=False),
            check_uce_in_memory=lambda _: self.answers.get("check_uce_in_memory", 0),
        )

    def note(self, name: str, device: int, *, stopped: bool) -> Any:
        self.calls.append(f"{name} {device}")
        self.stopped = stopped
        return self.answers.get(name)


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> RecordedNpu:
    made = RecordedNpu()
    monkeypatch.setitem(sys.modules, "torch_npu", made)
    monkeypatch.setattr(devices, "_found", {})
    return made


def test_an_ascend_device_is_stopped_and_started_again(npu: RecordedNpu) -> None:
    device = devices.find("hccl")
    backend = device.make_backend(None, 1, 4, LIMIT)
    device.interrupt(backend)
    device.close(backend)
    assert device.must_restart
    device.restart()
    device.make_backend(None, 1, 4, LIMIT)

    expected = ["make 1 of 4, 0:00:30", "stop_device 5", "delete key", "abort reinit"]
    assert [*expected, "restart_device 5", "make 1 of 4, 0:00:30"] == npu.calls


def test_an_ascend_device_that_cannot_be_stopped_is_an_error(npu: RecordedNpu) -> None:
    device = devices.find("hccl")
    npu.answers = {"stop_device": 1, "restart_device": 507}
    with pytest.raises(DeviceStuck, match="stop_device"):
        device.interrupt(None)
    with pytest.raises(DeviceStuck, match="507"):
        device.restart()


@pytest.mark.parametrize("damage", list(Damage))
def test_what_a_memory_error_hit_is_told(npu: RecordedNpu, damage: Damage) -> None:
    npu.answers = {"check_uce_in_memory": int(damage)}
    assert damage is devices.find("hccl").damage()
