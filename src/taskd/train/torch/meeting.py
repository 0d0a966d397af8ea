"""Leaving a group whose members change, and entering the next one.

A process says where it stands, waits for the answer, and puts the processes of the new generation behind its
groups. A further fault at any moment begins this again with the later generation.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from taskd.core.messages import Regroup, Save, Standing
from taskd.core.troubles import DECISION_S
from taskd.train.torch.fence import SocketFence
from taskd.train.torch.groups import Groups
from taskd.train.torch.resetting import refuse_unkept, reset_modules
from taskd.train.torch.wrapping import Handle, building, current, has_ddp
from taskd.worker.client import Worker
from taskd.worker.watch import Superseded, Watch

# For the order to come together after a fault, which a control plane may have to decide on first.
RAISE_LIMIT_S = DECISION_S + 5.0
STAND_LIMIT_S = 60.0
# For a try to connect to the leader's store; torch makes a second one, a second later at most.
REACH_S = 0.1
# How long to wait is the manager's to say: it knows of ranks that are busy and come later. This ends it.
ANSWER_LIMIT_S = 3600.0


@dataclass(slots=True)
class Wrap:
    """A builder of the script's, and the handle that stands for what it last built."""

    builder: Callable[[], torch.nn.Module]
    handle: Handle
    standing: bool = False

    def build(self, *, sync: bool) -> None:
        """Build, unless what was built can stay: groups are the same objects as before, only DDP is not."""
        if self.standing:
            return
        with building(sync=sync):
            wrapper = self.builder()
        refuse_unkept(wrapper)
        self.handle.set(wrapper)
        self.standing = True

    def leave(self) -> None:
        """Let a wrapper go that may be in the middle of a step and cannot be brought back."""
        if self.standing and has_ddp(current(self.handle)):
            self.handle.clear()
            self.standing = False


class Meeting:
    """One rank's way from group to group."""

    def __init__(self, worker: Worker, watch: Watch, fence: SocketFence, groups: Groups, rank: int) -> None:
        """Be ready to meet."""
        self._worker = worker
        self._watch = watch
        self._fence = fence
        self._groups = groups
        self._rank = rank
        self._server: Any = None
        self.wraps: list[Wrap] = []

    @property
    def handles(self) -> list[Handle]:
        """What the script holds of its wrappers."""
        return [wrap.handle for wrap in self.wraps]

    def come_together(
        self,
        describe: Callable[[int, str], Standing],
        objects: list[Any],
        meanwhile: Callable[[], None],
        *,
        fresh: bool,
        gentle: bool = False,
    ) -> Regroup | Save:
        """Leave the old group and enter that of the latest generation, however often it changes meanwhile.

        ``describe`` says where this rank stands, given the generation and where it serves a store. What a
        ``fresh`` process has built was not used yet. To write a dump no group is needed. ``meanwhile`` is
        done while others are still on the way.

        A ``gentle`` rank comes from the end of a step: its wrappers can stay, and it keeps its old group
        until all others stand too. One that leaves comes back without a new one.
        """
        while True:
            generation, leader = self._watch.raised
            self._watch.came_out()
            calm = gentle and self._watch.is_gentle(generation)
            if not calm:
                self._leave(objects, fresh=fresh)
            store = self._open_store() if leader == self._rank else ""
            try:
                answer = self._watch.stand(describe(generation, store), ANSWER_LIMIT_S, meanwhile)
                self._fence.release()  # there is an answer, so all have come out
                if isinstance(answer, Regroup):
                    if calm and self._watch.is_leaving(generation) and self._rank in answer.parted:
                        return answer
                    if calm:
                        # All stand, so nothing is on its way; gloo would wait for seconds to be sure of it.
                        self._fence.cut(generation - 1)
                        self._groups.leave()
                        self._fence.release()
                    self._join(answer)
            except Superseded:
                continue
            except Exception:
                if not self._watch.wait_raised(generation, RAISE_LIMIT_S):
                    raise
                continue
            return answer

    def _leave(self, objects: list[Any], *, fresh: bool) -> None:
        if not fresh:
            for wrap in self.wraps:
                wrap.leave()
        self._groups.leave()
        reset_modules([*(current(wrap.handle) for wrap in self.wraps if wrap.standing), *objects])
        self._server = None
        # Now, while the replacements start: building needs nobody else.
        with self._groups.muted():
            for wrap in self.wraps:
                wrap.build(sync=False)

    def _open_store(self) -> str:
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        if not _is_here(host):  # also rank 0 may have come up on another machine
            host = _own_address(host)
        limit = timedelta(seconds=STAND_LIMIT_S)
        self._server = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=limit)
        return f"{host}:{self._server.port}"

    def _join(self, regroup: Regroup) -> None:
        generation = regroup.generation
        host, _, port = regroup.store.rpartition(":")
        with self._fence.recording(generation):
            # The leader too: a connection that is made here can be cut when a peer never comes.
            client = self._reach(host, int(port), generation)
        self._groups.together(generation, dist.PrefixStore(f"taskd/{generation}", client))
        self._worker.enter(generation)

    def _reach(self, host: str, port: int, generation: int) -> dist.TCPStore:
        """Connect to the leader's store; give up as soon as another generation is raised.

        The leader may be gone, and torch opens a connection that was cut anew until its timeout is over: all
        would sit here until they have to be ended, and the state with them.
        """
        end = time.monotonic() + STAND_LIMIT_S
        while True:
            try:
                store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=REACH_S))
            except dist.DistError:
                if self._watch.raised[0] > generation or time.monotonic() > end:
                    raise
            else:
                store.set_timeout(timedelta(seconds=STAND_LIMIT_S))
                return store


def _is_here(host: str) -> bool:
    """Tell whether an address is one of this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _own_address(towards: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
