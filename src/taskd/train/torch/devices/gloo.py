"""gloo: collectives over TCP, of tensors in the host's memory or on a CUDA device.

gloo cannot be aborted; its sockets can be shut down under it (``fence``). What belongs to a backend is found
by what appears while it is made, so each has a fence of its own; a thread that waits in the making itself is
reached by the fence of the generation, which the caller holds around it.
"""

from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist

from taskd.train.torch.devices.protocol import Backend, Damage, Store
from taskd.train.torch.fence import SocketFence

_dist = cast("Any", dist)  # its groups are exported, but not for the type checker


class GlooDevice:
    """gloo, on the host."""

    name = "gloo"
    device_type = "cpu"
    must_restart = False

    def __init__(self) -> None:
        # By identity, with the backend itself: another one must not get its number while it is in here.
        self._fences: dict[int, tuple[Backend, SocketFence]] = {}

    def environment(self) -> dict[str, str]:
        """Nothing has to be set."""
        return {}

    def make_backend(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        options: object = None,  # noqa: ARG002 - gloo has none
    ) -> Backend:
        """Connect to all members; waits for them."""
        fence = SocketFence()
        with fence.recording(0):
            backend = _dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        self._fences[id(backend)] = backend, fence
        return backend

    def interrupt(self, backend: Backend) -> None:
        """Shut its connections down: the call that waits fails as if the peer had gone."""
        found = self._fences.get(id(backend))
        if found is not None:
            found[1].cut(0)

    def close(self, backend: Backend) -> None:
        """Shut its connections down, so that its threads come to an end when the last reference goes."""
        self.interrupt(backend)
        found = self._fences.pop(id(backend), None)
        if found is not None:
            found[1].release()

    def restart(self) -> None:
        """Nothing to do: there is no device."""

    def damage(self) -> Damage:
        """The host's memory corrects itself or ends the process."""
        return Damage.NONE
