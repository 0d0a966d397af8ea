"""How a command speaks to a job's manager.

One unary call, ``/taskd.Manager/Call``, with msgpack in raw bytes: no generated stubs, so that a command
needs nothing but msgspec and gRPC, and gRPC is imported only when there is something to call. The token
from the job's record goes along as metadata; who cannot read the record cannot give orders.
"""

from typing import TYPE_CHECKING, Any, cast

import msgspec

from taskd.cli.errors import ManagerRefused, ManagerUnreachable
from taskd.kit.papers import NO_PAPERS, JobPapers, PapersError, read_papers

if TYPE_CHECKING:
    import grpc

METHOD_PATH = "/taskd.Manager/Call"
TOKEN_KEY = "taskd-token"  # noqa: S105 (the name of a header)
DEFAULT_TIMEOUT_S = 5.0

# The manager is next door or on the job's own network: a proxy for web pages must not get in between.
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))


class Reply(msgspec.Struct):
    """What every method answers with."""

    ok: bool
    error: str = ""
    result: Any = None


def call(
    addr: str,
    token: str,
    method: str,
    params: dict[str, object],
    timeout_s: float,
    papers: JobPapers = NO_PAPERS,
) -> object:
    """Call a method of the manager and return its result, as plain values."""
    import grpc

    request = msgspec.msgpack.encode({"method": method, "params": params})
    with _open(addr, papers) as channel:
        invoke: Any = channel.unary_unary(METHOD_PATH, request_serializer=None, response_deserializer=None)
        try:
            answer = invoke(request, timeout=timeout_s, metadata=((TOKEN_KEY, token),))
        except grpc.RpcError as error:
            failed = cast("grpc.Call", error)
            raise _explain(failed.code().name, failed.details(), addr, method, timeout_s) from error
    try:
        reply = msgspec.msgpack.decode(answer, type=Reply)
    except msgspec.MsgspecError as error:
        raise ManagerRefused(
            f"what answered at {addr} is not a manager of this version of TaskD; restart the job with it"
        ) from error
    if not reply.ok:
        raise ManagerRefused(f"the manager refused {method}: {reply.error}")
    return reply.result


def _open(addr: str, papers: JobPapers) -> "grpc.Channel":
    import grpc

    if not papers:
        return grpc.insecure_channel(addr, options=_OPTIONS)
    try:
        shown = read_papers(papers.directory)
    except PapersError as error:
        raise ManagerUnreachable(f"{error}; run this in the pod of the job") from error
    credentials = grpc.ssl_channel_credentials(shown.ca, shown.key, shown.certificate)
    named = (*_OPTIONS, ("grpc.ssl_target_name_override", papers.identity))
    return grpc.secure_channel(addr, credentials, options=named)


def _explain(
    code: str, details: str, addr: str, method: str, timeout_s: float
) -> ManagerRefused | ManagerUnreachable:
    if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        return ManagerUnreachable(
            f"asked the manager at {addr} for {method}, and it did not answer within {timeout_s:g} s; "
            "one that was lost is replaced within seconds, so try again, or end the job with `taskd stop`"
        )
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return ManagerRefused(
            f"the manager at {addr} does not accept this job's token or certificate; is the address another "
            "job's by now?"
        )
    return ManagerRefused(f"the manager at {addr} failed at {method}: {code.lower()}, {details}")
