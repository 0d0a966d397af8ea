"""The floor: what a replacement costs when nothing has to be noticed, decided, interrupted or started.

Four ranks wait between steps; a fifth process is built and waits too. One of the four is killed, and the
fifth is told to take its place at once: form a group, receive the state, build the wrapper, step. All that a
recovery adds to this is what a recovery tool can be blamed for.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from recovery.contestants import SCRIPTS, base_env, free_ports
from recovery.ledgers import WORLD
from recovery.processes import Group
from recovery.runs import SETTLE_S, Fault, NotMeasured, Run, new_group

STEPS = 12
READY_S = 120.0


def measure_floor(home: Path, name: str, victims: tuple[int, ...]) -> list[Fault]:
    """Replace each of these ranks in turn."""
    group = new_group(home, name, {**base_env(), "BENCH_STORE": str(free_ports(1))})
    try:
        return _measure(Crew(group), victims)
    finally:
        group.end(orderly=False)


class Crew:
    """The processes of the floor and the pipes to them."""

    def __init__(self, group: Group) -> None:
        self.run = Run("floor", group)
        self._group = group
        self._round = 0
        self._start("--serve")
        self.ranks = {rank: self._start() for rank in range(WORLD)}
        self._wait_ready()

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        script = SCRIPTS / "floor_rank.py"
        return self._group.start([sys.executable, str(script), *words], piped=True)

    def _wait_ready(self) -> None:
        count = len(self._group.started) - 1
        self.run.wait(f"{count} built ranks", lambda seen: sum(_has(seen.marks, "ready")) == count, READY_S)

    def replace(self, victim: int) -> float:
        """Kill a rank and let a waiting process take its place; returns when the kill was."""
        newcomer = self._start()
        self._wait_ready()
        time.sleep(SETTLE_S)
        at = time.monotonic()
        os.kill(self.ranks[victim].pid, signal.SIGKILL)
        self.ranks[victim].wait()
        self.ranks[victim] = newcomer
        self.train(source=(victim + 1) % WORLD)
        return at

    def train(self, source: int = 0) -> None:
        """Let all ranks do a round of steps, without waiting for its end."""
        for rank, process in self.ranks.items():
            order = {"round": self._round, "rank": rank, "world": WORLD, "source": source}
            order |= {"first": STEPS * self._round, "steps": STEPS}
            if process.stdin is None:
                raise NotMeasured("floor: a rank has no pipe")
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        self._round += 1

    def wait_idle(self) -> None:
        """Wait until the round is over."""
        mark = f"idle-{self._round - 1}"
        self.run.wait("the end of a round", lambda seen: sum(_has(seen.marks, mark)) == WORLD, READY_S)


def _measure(crew: Crew, victims: tuple[int, ...]) -> list[Fault]:
    crew.train()
    crew.wait_idle()
    faults = []
    for victim in victims:
        at = crew.replace(victim)
        crew.wait_idle()
        records = crew.run.read()
        back = records.next_full(at)
        if back is None:
            raise NotMeasured("floor: the round has no step")
        # The steps of the round itself: the first one pays for what the group needs at first use.
        faults.append(Fault(at, back, records.step_s(time.monotonic(), STEPS - 2), 0, victim))
    return faults


def _has(marks: dict[int, list[tuple[float, str]]], name: str) -> list[bool]:
    return [any(what == name for _, what in lines) for lines in marks.values()]
