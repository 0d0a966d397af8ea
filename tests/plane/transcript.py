"""Plays transcripts: files that say, line by line, what a manager, the plane and the cluster do.

A line begins with who acts:

    job      a job of the cluster: strategies=, pods=, ranks=, scheduling=, sub_health=, rescheduling=,
             keeps_old=, obedient=, and manager=none where nobody registers
    limit    how long the plane waits: name=seconds
    M        the manager reports: the call, what is in it, and after -> the code that answers it
    P        the plane sends a signal: type or type=strategy, actions, ranks=, nodes=, timeout=, extra=, uuid=
    K        the cluster: something happens in it (replaced, lost, standby, devices, slow, resets), or the
             plane has had something done to it (asked, untouched, reset, annotation, label, incident)
    reconnect, restart, second: the stream is cut; the plane dies and comes again; another one subscribes
    end      the phase at the end; nothing else was sent

A signal has to be there in full: what a P line does not name is empty. `uuid=same` and `uuid=new` compare
with the signal before. `restart` and `reconnect` expect the outstanding signal once more, unless the next
word is `quiet`; a signal marked `#last` needs no answer and is not said again.
"""

import asyncio
import json
import shlex
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from taskd.core.faults.texts.reset import RankStatus, Reset, ResetRank
from taskd.core.faults.view import FaultKind, Health, RankFault
from taskd.core.plane.state import Limits
from taskd.plane.server import Plane
from taskd.testing.plane import MemoryCluster
from tests.plane.player import WAIT_S, FakeManager, plane_for, ranks
from tests.plane.stubs import message

HERE = Path(__file__).parent / "transcripts"
JOB = "job-0001"


def load(name: str) -> list[str]:
    lines = (HERE / f"{name}.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.txt"))


async def play(lines: list[str]) -> MemoryCluster:
    """Play a transcript to its end; returns the cluster as it is then."""
    async with Player() as player:
        for number, line in enumerate(lines):
            try:
                await player.act(shlex.split(line, comments=True))
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"line {number + 1}: {line}\n{error}\n{player.state}") from error
        return player.cluster


class Player:
    """One transcript under way."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.limits = Limits()
        self.keeps_old = False
        self.uuid = ""
        self.last: Any = None
        self.plane: Plane
        self.manager: FakeManager
        self._stack = AsyncExitStack()
        self._begun = False
        self._managed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    @property
    def state(self) -> str:
        desk = self._desk if self._begun else None
        return f"{desk.state}\nasked: {self.cluster.asks}" if desk else "no desk"

    async def act(self, words: list[str]) -> None:
        match words:
            case ["job", *rest]:
                self._add_job(pairs(rest))
                return
            case ["limit", *rest]:
                values = {key: float(value) for key, value in pairs(rest).items()}
                self.limits = replace(self.limits, **values)  # type: ignore[arg-type]
                return
            case _:
                await self._begin()
        match words:
            case ["M", call, *rest]:
                await self._report(call, rest)
            case ["P", kind, *rest]:
                self._compare(kind, rest, await self.manager.next_signal())
            case ["K", *rest]:
                await self._cluster(rest)
            case ["reconnect", *rest]:
                await self.manager.hang_up()
                await self._until(lambda: not self._desk.state.connected)
                await self.manager.subscribe()
                await self._expect_again(rest)
            case ["restart", *rest]:
                await self._stack.aclose()
                self._begun = False
                await self._begin()
                await self._expect_again(rest)
            case ["second", *rest]:
                first = self.manager
                self.manager = FakeManager(self.plane.port, JOB, keeps_old=self.keeps_old)
                self._stack.push_async_callback(self.manager.close)
                await self.manager.subscribe()
                async with asyncio.timeout(WAIT_S):
                    await first.ended.wait()
                await self._expect_again(rest)
            case ["end", phase]:
                await self._until(lambda: self._desk is not None and self._desk.state.phase == phase)
                if not self._managed:
                    return
                assert self.manager.signals.empty(), f"unexpected: {self.manager.signals.get_nowait()}"
            case _:
                raise ValueError(f"no such line: {words}")

    def _add_job(self, given: dict[str, str]) -> None:
        labels = {
            "fault-scheduling": given.get("scheduling", "grace"),
            "subHealthyStrategy": given.get("sub_health", ""),
            "pod-rescheduling": given.get("rescheduling", ""),
        }
        self._managed = given.get("manager") != "none"
        self.cluster.obedient = given.get("obedient") == "1"
        self.keeps_old = given.get("keeps_old") == "1"
        self.cluster.add_job(
            JOB,
            given.get("strategies", ""),
            pods=int(given.get("pods", "2")),
            ranks_per_pod=int(given.get("ranks", "8")),
            labels=labels,
        )

    async def _begin(self) -> None:
        if self._begun:
            return
        self.plane = await self._stack.enter_async_context(plane_for(self.cluster, self.limits))
        if not self._managed:
            self._begun = True
            return
        self.manager = FakeManager(self.plane.port, JOB, keeps_old=self.keeps_old)
        self._stack.push_async_callback(self.manager.close)
        self._begun = True
        await self.manager.join()
        await self._until(lambda: self._desk.state.connected)

    @property
    def _desk(self) -> Any:
        return self.plane.office._desks.get(JOB)

    async def _until(self, true: Callable[[], bool]) -> None:
        """Wait for something in this process, which brings no event to wait for."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                await asyncio.sleep(0.002)

    async def _expect_again(self, rest: list[str]) -> None:
        if rest == ["quiet"] or self.last is None:
            return
        again = await self.manager.next_signal()
        assert self.last == again, f"said again: {again}\ninstead of: {self.last}"

    async def _report(self, call: str, rest: list[str]) -> None:
        arrow = rest.index("->")
        given, want = rest[:arrow], rest[arrow + 1 :]
        options = pairs([word for word in given if word.startswith("uuid=")])
        words = [word for word in given if not word.startswith("uuid=")]
        fields: dict[str, Any] = {}
        match call, words:
            case "ReportProcessFault", [faults]:
                fields = {"faultRanks": ranks(faults)}
            case "ReportStopComplete", [code, *faults]:
                fields = {"status": {"code": int(code)}, "faultRanks": ranks(",".join(faults))}
            case "ReportRecoverStrategy", [offered, *faults]:
                fields = {
                    "strategies": offered.split(",") if offered else [],
                    "faultRanks": ranks(",".join(faults)),
                }
            case "ReportRecoverStatus", [strategy, code]:
                fields = {"strategy": strategy, "status": {"code": int(code)}}
            case _:
                raise ValueError(f"no such report: {call} {words}")
        uuid = {"same": self.uuid, "stale": "0-stale", "": ""}[options.get("uuid", "")]
        answer = await self.manager.report(call, uuid=uuid, **fields)

        assert int(want[0]) == answer.code, answer.info
        for text in want[1:]:
            assert text in answer.info, answer.info

    def _compare(self, kind: str, rest: list[str], got: Any) -> None:
        given = pairs([word for word in rest if "=" in word])
        actions = [action for word in rest if "=" not in word for action in word.split(",")]
        name, _, change = kind.partition("=")
        want = message("ProcessManageSignal")(
            uuid=got.uuid,
            jobId=JOB,
            signalType=name,
            actions=actions,
            faultRanks=ranks(given.get("ranks", "")),
            changeStrategy=change,
            timeout=int(given.get("timeout", "0")),
            nodeRankIds=[node for node in given.get("nodes", "").split(",") if node],
            extraParams=given.get("extra", ""),
        )

        assert want == got, f"want:\n{want}\ngot:\n{got}"
        if "uuid" in given:
            assert (given["uuid"] == "same") == (got.uuid == self.uuid), f"{got.uuid} after {self.uuid}"
        assert got.uuid
        self.uuid, self.last = got.uuid, got

    async def _cluster(self, words: list[str]) -> None:
        cluster = self.cluster
        match words:
            case ["replaced", pods]:
                cluster.replace_pods(JOB, None if pods == "all" else map(int, pods.split(",")))
                uids = {rank: pod.uid for rank, pod in cluster._jobs[JOB].pods.items()}
                await self._until(
                    lambda: uids == {rank: pod.uid for rank, pod in self._desk.state.pods.items()}
                )
            case ["lost", pods]:
                cluster.lose_pods(JOB, map(int, pods.split(",")))
            case ["resets", *entries]:
                cluster.put_config_map(cluster._jobs[JOB], f"reset-config-name-{JOB}", _resets(entries))
            case ["untouched"]:
                await asyncio.sleep(0.05)
                assert [] == cluster.asks
            case ["standby", pod]:
                cluster.stand_by(JOB, int(pod))
            case ["devices", *faults]:
                self._devices(faults, Health.UNHEALTHY)
            case ["slow", *faults]:
                self._devices(faults, Health.SUB_HEALTHY)
            case ["asked", wish, *pods] if not set(pods) & {"gently", "forcibly"}:
                want = (wish, tuple(int(pod) for pod in ",".join(pods).split(",") if pod))
                await self._until(lambda: want in [(ask.wish.value, ask.pods) for _, ask in cluster.asks])
            case ["asked", wish, *pods, how]:
                named = tuple(int(pod) for pod in ",".join(pods).split(",") if pod)
                wanted = (wish, named, how == "forcibly")
                await self._until(
                    lambda: wanted in [(ask.wish.value, ask.pods, ask.force) for _, ask in cluster.asks]
                )
            case ["reset", *rest]:
                await self._until(lambda: self._reset_is(pairs(rest)))
            case ["annotation", value]:
                await self._until(lambda: any(value == each.value for _, each in cluster.annotations))
            case ["label", key, value]:
                await self._until(
                    lambda: (
                        [(key, value)]
                        == [(e.key, str(e.value)) for _, e in cluster.labels if e.key == key][-1:]
                    )
                )
            case ["incident", text]:
                await self._until(
                    lambda: any(text in f"{each.outcome}: {each.reason}" for _, each in cluster.incidents)
                )
            case ["phase", phase]:
                await self._until(lambda: self._desk.state.phase == phase)
            case _:
                raise ValueError(f"no such thing in the cluster: {words}")

    def _devices(self, faults: list[str], health: Health) -> None:
        found = []
        for fault in faults:
            rank, level, kind = fault.split(":")
            found.append(RankFault(int(rank), FaultKind(kind), level, "80E18401"))
        self.cluster.break_devices(JOB, *found, health=health)

    def _reset_is(self, want: dict[str, str]) -> bool:
        data = self.cluster.config_maps.get(("default", f"reset-config-name-{JOB}"))
        if data is None:
            return False
        found = json.loads(data["reset.json"])
        listed = sorted(int(each.rankId) for each in ranks(want.get("ranks", "")))
        return (
            listed == [entry["RankId"] for entry in found["RankList"]]
            and (want.get("flushing") == "1") == found["FaultFlushing"]
            and (want.get("in_place") == "1") == found["RestartFaultProcess"]
            and int(want.get("retry", "0")) == found["RetryTime"]
            and int(want.get("leave", "0")) == found["GracefulExit"]
        )


def _resets(entries: list[str]) -> dict[str, str]:
    """What a device plugin writes while it resets devices, from `rank:status`."""
    listed = tuple(
        ResetRank(int(rank), status=RankStatus(status), policy="reset")
        for rank, _, status in (entry.partition(":") for entry in entries)
    )
    return Reset(listed).data()


def pairs(words: list[str]) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in words)}
