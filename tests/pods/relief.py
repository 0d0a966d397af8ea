"""A job of three pods and one that is kept ready, and how long it stood still."""

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from taskd.core.launch import RECOVER
from tests.pods.test_pods import knows
from tests.pods.town import Pod, Town, cpu_job, taskd_run, town
from tests.roles.harness import eventually
from tests.train.runs import DDP

STEPS = 400
PATIENCE_S = 150.0  # torch is imported in each pod
PAUSE_S = 0.05


@dataclass
class Crew:
    """The pods of a job that trains, and where its ranks write down their steps."""

    place: Town
    pods: list[Pod]
    standby: Pod
    out: Path

    def entries(self, rank: int) -> list[dict[str, Any]]:
        """What a rank has told of its steps."""
        file = self.out / f"ledger-{rank}.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def stood_still(self, since: float, survivor: int, more: int = 5) -> float:
        """Wait until a survivor trains on; returns how long after that moment it did its next step.

        A step may still be done just after the fault, before anybody feels it: the longest gap counts.
        """

        def gap() -> float | None:
            times = [entry["at"] for entry in self.entries(survivor) if entry["at"] > since - 1.0]
            gaps = [(after - before, after) for before, after in itertools.pairwise(times)]
            longest = max(gaps, default=(0.0, 0.0))
            done = sum(at > longest[1] for at in times)
            return longest[1] - since if longest[1] > since and longest[0] > 0.3 and done >= more else None

        found = eventually(gap, "the next steps", PATIENCE_S)
        assert found is not None
        return float(found)

    def finish(self, ending: list[Pod]) -> None:
        """Let the rest go quickly, and see that these pods end well."""
        (self.out / "hurry").touch()
        codes = [pod.wait(PATIENCE_S) for pod in ending]
        assert [0] * len(ending) == codes, [pod.err[-3000:] for pod in self.place.pods]


@contextlib.contextmanager
def crew(home: Path) -> Iterator[Crew]:
    """Start it, and wait until all train, all know each other and the standby is warm."""
    out = home / "out"
    out.mkdir()
    script = (DDP, "--out", str(out), "--steps", str(STEPS), "--pause", str(PAUSE_S))
    with town(home, cpu_job(2, 1, RECOVER, standbys=1), *taskd_run(*script)) as place:
        pods = [place.start(rank) for rank in range(3)]
        found = Crew(place, pods, place.start_standby(), out)
        eventually(lambda: min(len(found.entries(rank)) for rank in range(3)) >= 3, "three steps", PATIENCE_S)
        for pod in (*pods, found.standby):
            eventually(partial(knows, pod, 4), f"the roster of all in {pod.name}", PATIENCE_S)
        eventually(partial(_warm, found.standby), "a warm process", PATIENCE_S)
        time.sleep(1.0)
        yield found


def commands(pod: Pod) -> dict[psutil.Process, str]:
    """The processes of a pod with their command lines."""
    found = {}
    for process in pod.family():
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process] = " ".join(process.cmdline())
    return found


def _warm(pod: Pod) -> bool:
    return any("taskd spare" in command for command in commands(pod).values())
