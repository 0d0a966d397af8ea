"""The link from a job's manager to a control plane: ours, or a ClusterD.

Nothing here decides. Signals come out as values, reports go in as values, every call has a time limit, and
whatever the other side sends that is no signal is told in the log and skipped.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog

from taskd.core.liaison import Signal
from taskd.kit.papers import PapersError, read_papers
from taskd.links.rpc import CLIENT_OPTIONS
from taskd.links.tls import open_channel
from taskd.wire import recover
from taskd.wire.proto3 import ProtoError, decode, encode

CALL_S = 5.0
REFUSED = 403
ROLE = "master"
# A server that is not ours ends a connection after three pings with nothing of its own between them. A
# ClusterD says something every 5 s; with a ping every 10 s there is always something between.
PING_MS = 10_000
OPTIONS = [
    *(each for each in CLIENT_OPTIONS if each[0] != "grpc.keepalive_time_ms"),
    ("grpc.keepalive_time_ms", PING_MS),
]
# Headers may have 8 KB in all; nobody has so many standbys at work.
MOST_PLACED = 64
MAX_DIGITS = 10

log = structlog.get_logger("taskd.plane_link")
Ranks = Sequence[tuple[int, str]]
M = TypeVar("M")


class PlaneError(ConnectionError):
    """The plane cannot be reached, or refuses; the text says which."""


@dataclass(frozen=True, slots=True)
class PlaneAddress:
    """Where the plane is, which job this is there, and what to show at the door."""

    address: str
    job_id: str
    certificates: str = ""
    """A directory; read for each connection, so that a renewed one is taken up."""


class PlaneRefused(PlaneError):
    """The plane is there and does not want this job's processes recovered; the text says why."""


class PlaneLink:
    """One connection."""

    def __init__(self, channel: grpc.aio.Channel, job_id: str) -> None:
        """Wrap an open channel."""
        self._channel = channel
        self._job_id = job_id
        self.ours = False

    async def begin(self) -> None:
        """Make the job known; raises PlaneError with what the plane said if it does not want it."""
        info = recover.ClientInfo(self._job_id, ROLE)
        for call in ("Init", "Register"):
            status = await self._call(call, info, recover.Status)
            if status.code == REFUSED:
                raise PlaneRefused(status.info)
            if status.code:
                raise PlaneError(f"{call}: {status.code} {status.info}")

    async def signals(self) -> AsyncIterator[Signal]:
        """Give signals as they come; ends when the plane ends the stream, which a ClusterD does often."""
        info = recover.ClientInfo(self._job_id, ROLE)
        path = recover.RECOVER.path("SubscribeProcessManageSignal")
        open_stream: Any = self._channel.unary_stream(path)
        stream = open_stream(encode(info), metadata=((recover.KEEPS_OLD_KEY, "1"),))
        try:
            while (data := await stream.read()) is not grpc.aio.EOF:
                try:
                    signal = read_signal(decode(recover.ProcessManageSignal, data))
                except ProtoError as error:
                    # To end the stream for it would bring it once more with the next one.
                    log.warning("no_signal", why=str(error))
                    continue
                yield signal
        except grpc.aio.AioRpcError as error:
            raise PlaneError(f"the signals ended: {error.code().name} {error.details()}") from error
        finally:
            stream.cancel()

    async def report_fault(self, ranks: Ranks, cut: Sequence[int] = ()) -> recover.Status:
        """Say which ranks are hurt, and, to a plane that wants to know, which pods nobody reaches."""
        request = recover.ProcessFaultRequest(self._job_id, _ranks(ranks))
        headers = {recover.CUT_KEY: ",".join(map(str, cut))} if cut else {}
        return await self._report("ReportProcessFault", request, headers=headers)

    async def report_stopped(self, code: int, info: str, ranks: Ranks, uuid: str = "") -> recover.Status:
        """Say that the training stands."""
        status = recover.Status(code, info)
        request = recover.StopCompleteRequest(self._job_id, status, _ranks(ranks))
        return await self._report("ReportStopComplete", request, uuid)

    async def report_offers(self, ranks: Ranks, strategies: Sequence[str], uuid: str = "") -> recover.Status:
        """Say what can be done."""
        request = recover.RecoverStrategyRequest(self._job_id, _ranks(ranks), tuple(strategies))
        return await self._report("ReportRecoverStrategy", request, uuid)

    async def report_outcome(
        self,
        code: int,
        info: str,
        strategy: str,
        uuid: str = "",
        *,
        alone: bool = False,
        placed: Sequence[tuple[int, str]] = (),
    ) -> recover.Status:
        """Say how it went; ``alone``: what the job did without being told, and who has which place now."""
        status = recover.Status(code, info)
        request = recover.RecoverStatusRequest(self._job_id, status, strategy)
        headers = {recover.ALONE_KEY: "1"} if alone else {}
        if alone and placed:
            headers[recover.PLACED_KEY] = ",".join(f"{rank}={host}" for rank, host in placed[:MOST_PLACED])
        return await self._report("ReportRecoverStatus", request, uuid, headers)

    async def _report(
        self, method: str, request: object, uuid: str = "", headers: Mapping[str, str] | None = None
    ) -> recover.Status:
        """Send a report; ``uuid`` names the order that it answers, to a plane that wants to know."""
        named = {recover.UUID_KEY: uuid} if uuid else {}
        return await self._call(method, request, recover.Status, {**named, **(headers or {})})

    async def _call(
        self, method: str, request: object, kind: type[M], named: Mapping[str, str] | None = None
    ) -> M:
        begin: Any = self._channel.unary_unary(recover.RECOVER.path(method))
        headers = tuple((named or {}).items())
        call = begin(encode(request), timeout=CALL_S, metadata=headers)
        try:
            answer = decode(kind, await call)
            header = dict(await call.initial_metadata() or ())
        except grpc.aio.AioRpcError as error:
            raise PlaneError(f"{method}: {error.code().name} {error.details()}") from error
        except ProtoError as error:
            raise PlaneError(f"{method} was answered with something else: {error}") from error
        self.ours = self.ours or recover.OURS_KEY in header
        return answer


@contextlib.asynccontextmanager
async def connect_plane(place: PlaneAddress, timeout_s: float) -> AsyncIterator[PlaneLink]:
    """Open a connection; raises PlaneError if nobody answers in time."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            papers = read_papers(place.certificates) if place.certificates else None
            channel = await stack.enter_async_context(open_channel(place.address, papers, timeout_s, OPTIONS))
        except (ConnectionError, PapersError) as error:
            raise PlaneError(f"no control plane: {error}") from error
        yield PlaneLink(channel, place.job_id)


def read_signal(message: recover.ProcessManageSignal) -> Signal:
    """Turn a signal into a value; numbers that are none are left out."""
    return Signal(
        uuid=message.uuid,
        kind=message.signalType,
        actions=message.actions,
        ranks=tuple(
            (int(each.rankId), each.faultType) for each in message.faultRanks if _counts(each.rankId)
        ),
        strategy=message.changeStrategy,
        nodes=tuple(int(each) for each in message.nodeRankIds if _counts(each)),
        extra=message.extraParams,
        standbys=tuple(
            (int(rank), pod)
            for rank, _, pod in (each.partition("=") for each in message.standbys)
            if _counts(rank) and pod
        ),
        shunned=message.shunned,
    )


def _counts(text: str) -> bool:
    """Tell whether a text is a number that can be one of a rank."""
    return text.isdecimal() and len(text) < MAX_DIGITS


def _ranks(ranks: Ranks) -> tuple[recover.FaultRank, ...]:
    return tuple(recover.FaultRank(str(rank), kind) for rank, kind in ranks)
