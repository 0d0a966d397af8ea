"""The plane as a server: all services on one port, until it is told to stop.

Without certificates it refuses to start, unless insecurity is asked for by name: whoever reaches the port can
speak for any job then. A caller with a certificate speaks for the job that the certificate names, and for no
other; what concerns all jobs (faults from outside, watching all of them) takes the operator's certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import structlog

from taskd.core.certificates import OPERATOR
from taskd.core.plane.state import Limits
from taskd.links.services import Admit, Caller, CallRefused, handler, listen
from taskd.plane.faultwatch import FaultWatch
from taskd.plane.jobwatch import JobWatch
from taskd.plane.office import Office
from taskd.plane.rates import Rates
from taskd.plane.recovery import Recovery
from taskd.plane.surroundings import ConfigMaps, FaultCentre, Hands, JobDirectory, Keeper
from taskd.plane.tracing import Tracing
from taskd.wire.observing import CONFIG, FAULT, JOB
from taskd.wire.recover import RECOVER
from taskd.wire.telling import PUB_FAULT, TRACE

STOP_GRACE_S = 1.0

log = structlog.get_logger("taskd.plane")


class InsecureRefused(ValueError):
    """Neither certificates nor the wish to do without them."""

    def __init__(self) -> None:
        """Say what to do about it."""
        super().__init__("the plane needs certificates; to serve without any, ask for insecure by name")


@dataclass(frozen=True, slots=True)
class PlaneConfig:
    """Where and how to serve."""

    address: str = "0.0.0.0:8899"
    credentials: grpc.ServerCredentials | None = None
    insecure: bool = False
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Plane:
    """A plane that serves; its port is known once it does."""

    port: int
    office: Office


@contextlib.asynccontextmanager
async def open_plane(
    config: PlaneConfig,
    *,
    directory: JobDirectory,
    centre: FaultCentre,
    config_maps: ConfigMaps,
    hands: Hands,
    keeper: Keeper,
) -> AsyncIterator[Plane]:
    """Serve while the block runs. The states of jobs are brought back before the first call is answered."""
    if config.credentials is None and not config.insecure:
        raise InsecureRefused
    stopping = asyncio.Event()
    office = Office(
        directory=directory,
        centre=centre,
        config_maps=config_maps,
        hands=hands,
        keeper=keeper,
        limits=config.limits,
    )
    await office.open()
    recovery = Recovery(office, stopping)
    faults = FaultWatch(directory, centre)
    jobs = JobWatch(directory)
    tracing = Tracing(directory, centre, config_maps)
    admit = _admit(Rates(), directory, secure=config.credentials is not None)
    try:
        server, port = await listen(
            config.address,
            (
                handler(RECOVER, recovery.calls(), admit),
                handler(FAULT, faults.calls(), admit),
                handler(JOB, jobs.calls(), admit),
                handler(CONFIG, jobs.table_calls(), admit),
                handler(TRACE, tracing.calls(), admit),
                handler(PUB_FAULT, tracing.fault_calls(), admit),
            ),
            config.credentials,
        )
        log.info("serving", port=port, secure=config.credentials is not None)
        try:
            yield Plane(port, office)
        finally:
            stopping.set()
            for watch in (faults, jobs, tracing):
                watch.close()
            await office.close()
            await server.stop(STOP_GRACE_S)
    finally:
        await office.close()


async def serve_plane(
    config: PlaneConfig,
    *,
    directory: JobDirectory,
    centre: FaultCentre,
    config_maps: ConfigMaps,
    hands: Hands,
    keeper: Keeper,
) -> None:
    """Serve until cancelled; then end the streams, and leave every state where it is kept."""
    async with open_plane(
        config, directory=directory, centre=centre, config_maps=config_maps, hands=hands, keeper=keeper
    ):
        await asyncio.Event().wait()


def _admit(rates: Rates, directory: JobDirectory, *, secure: bool) -> Admit:
    def admit(method: str, request: object, caller: Caller) -> None:
        if method == "HealthCheck":
            return
        job_id = getattr(request, "jobId", "") or getattr(request, "jobID", "")
        who = job_id if job_id and directory.find(job_id) else caller.host
        if not rates.take(who):
            raise CallRefused(
                "rate limited, there is too many requests, please retry later",
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            )
        if secure and OPERATOR not in caller.identities:
            _check_certificate(job_id or _named(request, directory), caller)

    return admit


def _check_certificate(job_id: str, caller: Caller) -> None:
    """Let a job's certificate speak for that job; what concerns all jobs, or none, is no job's business."""
    if not job_id or job_id not in caller.identities:
        whom = f"job {job_id}" if job_id else "all jobs"
        raise CallRefused(
            f"the certificate of {caller.peer} does not speak for {whom}", grpc.StatusCode.PERMISSION_DENIED
        )


def _named(request: object, directory: JobDirectory) -> str:
    """The job that a request names as `namespace/job`; empty where it names none that there is."""
    namespace, _, name = getattr(request, "jobNsName", "").partition("/")
    found = directory.named(namespace, name) if name else None
    return found.job_id if found is not None else ""
