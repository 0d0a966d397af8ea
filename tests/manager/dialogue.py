"""Plays transcripts of a control plane against a manager of ours; the sibling of `tests.plane.transcript`.

The lines are those of that one, with the parts exchanged: what the plane says (P) is sent, and what the
manager says (M) has to come, in this order and with this content.

    job      strategies=, what the job allows; ours=1 for a plane of ours, otherwise it is a stock one
    limit    how long the manager waits: NAME=seconds, names of `taskd.manager.liaison`
    P        the plane sends a signal: type or type=strategy, actions, ranks=, nodes=, timeout=, extra=,
             uuid=, standbys=, shunned=; or `ends` (the stream, with OK), `dies`, `comes`
    M        the manager calls: a call, what is in it, and after -> the code that answers it. `joins` is Init,
             Register and Subscribe; `silent`: it says nothing for a moment
    J        something happens to the job (killed, trouble, standby, through, saved, moved, waits), or
             something is true of it (phase, strategy, reason, placed, doubted, ended, switching, talk)

What a line does not name is empty, a uuid too. Ranks 0, 1 and 2 are on a node each.
"""

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest

from taskd.manager import liaison
from tests.manager.played import JOB, PATIENCE_S, PlayedManager, working
from tests.manager.playedplane import SUBSCRIBE, Heard, PlayedPlane, playing, status
from tests.plane.player import ranks
from tests.plane.stubs import message
from tests.plane.transcript import pairs

HERE = Path(__file__).parent / "transcripts"
MOMENT_S = 0.15


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.txt"))


async def play(name: str, limits: pytest.MonkeyPatch) -> None:
    """Play a transcript to its end."""
    lines = [shlex.split(line, comments=True) for line in (HERE / f"{name}.txt").read_text().splitlines()]
    words = [line for line in lines if line]
    given = pairs(next(line for line in words if line[0] == "job")[1:])
    for line in words:
        if line[0] == "limit":
            for key, value in pairs(line[1:]).items():
                limits.setattr(liaison, key, float(value))
    async with (
        playing(ours=given.get("ours") == "1") as plane,
        working(plane.port, *given["strategies"].split(",")) as manager,
    ):
        dialogue = Dialogue(plane, manager)
        for number, line in enumerate(words):
            try:
                await dialogue.act(line)
            except (AssertionError, TimeoutError) as error:
                job = manager.job
                state = f"{job.phase}: {job.reason}; {manager.liaison._talk}"
                raise AssertionError(f"line {number + 1}: {' '.join(line)}\n{error!r}\n{state}") from error
        await dialogue.act(["M", "silent"])


class Dialogue:
    """One transcript under way."""

    def __init__(self, plane: PlayedPlane, manager: PlayedManager) -> None:
        self._plane = plane
        self._manager = manager

    async def act(self, words: list[str]) -> None:
        match words:
            case ["job" | "limit", *_]:
                pass
            case ["P", "ends"]:
                self._plane.end_stream()
            case ["P", "dies"]:
                await self._plane.die()
            case ["P", "comes"]:
                await self._plane.serve()
            case ["P", kind, *rest]:
                self._plane.send(_signal(kind, rest))
            case ["M", "silent"]:
                await asyncio.sleep(MOMENT_S)
                assert self._plane.heard.empty(), f"unexpected: {self._plane.heard.get_nowait()}"
            case ["M", "joins"]:
                for call in ("Init", "Register", SUBSCRIBE):
                    await self._call(call, [], 0)
            case ["M", call, *given, "->", code]:
                await self._call(call, given, int(code))
            case ["M", "Subscribe"]:
                await self._call(SUBSCRIBE, [], 0)
            case ["J", *rest]:
                await self._job(rest)
            case _:
                raise ValueError(f"no such line: {words}")

    async def _call(self, name: str, given: list[str], code: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            heard = await self._plane.heard.get()
        assert name == heard.name, f"{heard.name} {heard.request}"
        _compare(heard, given)
        heard.answer.set_result(status(code))

    async def _job(self, words: list[str]) -> None:
        manager = self._manager
        match words:
            case ["killed", node]:
                manager.killed(node)
            case ["trouble", node, kind]:
                manager.trouble(node, kind)
            case ["standby", name]:
                manager.stand_by(name)
            case ["through"]:
                manager.come_through()
            case ["saved"]:
                manager.save()
            case ["moved", rank]:
                manager.move(int(rank))
            case ["waits", seconds]:
                await asyncio.sleep(float(seconds))
            case ["switching"]:
                await manager.until(lambda: manager.job.switch is not None)
            case ["phase", phase]:
                await manager.until(lambda: manager.job.phase.value == phase)
            case ["reason", text]:
                await manager.until(lambda: text in self._reason())
            case ["strategy", strategy]:
                await manager.until(lambda: self._strategy() == strategy)
            case ["placed", rank, node]:
                plan = manager.job.plan
                assert plan is not None
                assert node == plan.places[int(rank)].node
            case ["doubted", rank]:
                await manager.until(lambda: [(int(rank),)] == [order.ranks for order in manager.orders])
            case ["talk", stage]:
                await manager.until(lambda: manager.liaison._talk.stage == stage)
            case ["ended", text]:
                await manager.until(lambda: [text] == manager.ended)
            case _:
                raise ValueError(f"no such thing in the job: {words}")

    def _strategy(self) -> str:
        incidents = self._manager.scene.incidents
        return incidents[max(incidents)].strategy if incidents else ""

    def _reason(self) -> str:
        incidents = self._manager.scene.incidents
        return f"{self._manager.job.reason}; {incidents[max(incidents)].reason if incidents else ''}"


def _signal(kind: str, rest: list[str]) -> Any:
    given = pairs([word for word in rest if "=" in word])
    name, _, change = kind.partition("=")

    def listed(key: str) -> list[str]:
        return [each for each in given.get(key, "").split(",") if each]

    return message("ProcessManageSignal")(
        uuid=given.get("uuid", ""),
        jobId=JOB,
        signalType=name,
        actions=[action for word in rest if "=" not in word for action in word.split(",")],
        faultRanks=ranks(given.get("ranks", "")),
        changeStrategy=change,
        timeout=int(given.get("timeout", "0")),
        nodeRankIds=listed("nodes"),
        extraParams=given.get("extra", ""),
        standbys=listed("standbys"),
        shunned=listed("shunned"),
    )


def _compare(heard: Heard, given: list[str]) -> None:
    """Hold a call against its line. The words of a status are for people, and compared with nothing."""
    options = pairs([word for word in given if "=" in word])
    words = [word for word in given if "=" not in word]
    got = heard.request
    want: dict[str, Any] = {"jobId": JOB}
    match heard.name, words:
        case "Init" | "Register" | "SubscribeProcessManageSignal", []:
            want["role"] = "master"
        case "ReportProcessFault", [faults]:
            want["faultRanks"] = ranks(faults)
        case "ReportStopComplete", [code, *faults]:
            want["status"] = {"code": int(code), "info": got.status.info}
            want["faultRanks"] = ranks(",".join(faults))
        case "ReportRecoverStrategy", [offered, *faults]:
            want["strategies"] = offered.split(",")
            want["faultRanks"] = ranks(",".join(faults))
        case "ReportRecoverStatus", [strategy, code]:
            want["strategy"] = strategy
            want["status"] = {"code": int(code), "info": got.status.info}
        case _:
            raise ValueError(f"no such report: {heard.name} {words}")

    assert type(got)(**want) == got, f"want:\n{want}\ngot:\n{got}"
    said = {key.removeprefix("taskd-"): heard.metadata[key] for key in heard.metadata if "taskd-" in key}
    said.pop("keeps-old-pod", None)
    assert options == said, f"beside it: {said}"
