"""The calls of the command line: status, timeline, inject, switch, ping, stop, metrics."""

from typing import Any, Protocol

import msgspec

from taskd.core.status import IncidentStatus, JobStatus
from taskd.manager.metrics import expose

_encode = msgspec.msgpack.Encoder().encode


class CallError(ValueError):
    """The caller asked for something that cannot be done; the text is for the caller."""


class Callee(Protocol):
    """What the calls need of a manager."""

    def status(self) -> JobStatus:
        """Return the job as it is now."""
        ...

    def timeline(self) -> list[IncidentStatus]:
        """Return the incidents."""
        ...

    async def inject(self, params: dict[str, object]) -> dict[str, str]:
        """Do a fault to the job."""
        ...

    async def ping(self) -> dict[str, object]:
        """Ask every worker for a sign of life."""
        ...

    def switch(self, rank: int, node_rank: int) -> int:
        """Begin to move a rank, or a node's ranks; the other one of the two is -1."""
        ...

    def request_stop(self, why: str, code: int) -> None:
        """End the job in order."""
        ...


class _Request(msgspec.Struct):
    method: str
    params: dict[str, Any] = {}


async def answer_call(manager: Callee, request: bytes) -> bytes:
    """Answer one call; a bad one gets a sentence, never a broken connection."""
    try:
        call = msgspec.msgpack.decode(request, type=_Request)
        result = await _dispatch(manager, call)
    except (msgspec.MsgspecError, CallError) as error:
        return _encode({"ok": False, "error": str(error), "result": None})
    return _encode({"ok": True, "error": "", "result": result})


async def _dispatch(manager: Callee, call: _Request) -> object:
    match call.method:
        case "status":
            return manager.status()
        case "timeline":
            return manager.timeline()
        case "inject":
            return await manager.inject(call.params)
        case "switch":
            number = manager.switch(int(call.params.get("rank", -1)), int(call.params.get("node", -1)))
            return {"number": number}
        case "ping":
            return await manager.ping()
        case "stop":
            why = str(call.params.get("why", "stopped by request"))
            manager.request_stop(why, int(call.params.get("code", 0)))
            return {}
        case "metrics":
            return expose(manager.status(), manager.timeline()).decode()
        case _:
            raise CallError(f"this manager has no method {call.method!r}")
