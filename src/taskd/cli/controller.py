"""`taskd controller`: run the operator until it is told to stop."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Mapping
from typing import Any

import structlog

from taskd.cli.errors import CliError
from taskd.core.exits import ExitCode
from taskd.kube.elector import LeadershipLost
from taskd.kube.errors import ConfigError, KubeError, NotLeader
from taskd.kube.events import EventRecorder
from taskd.operator.authority import AuthorityKeeper
from taskd.operator.cluster import Cluster
from taskd.operator.config import ControllerConfig, load
from taskd.operator.controller import Beside, Controller


def run(flags: Mapping[str, Any], config: str) -> int:
    """Run a controller with these flags; ends with 0 when it was asked to stop."""
    try:
        settings = load(flags, path=config)
    except ConfigError as error:
        raise CliError(str(error), ExitCode.USAGE) from error
    _log_to_stderr(settings.log_level)
    try:
        asyncio.run(_until_told(settings))
    except* ConfigError as group:
        raise CliError(str(_first(group)), ExitCode.USAGE) from None
    except* (LeadershipLost, NotLeader) as group:
        # Nothing may be done any more, whoever noticed it first: the renewal, or a write that was due. A
        # fresh process begins with fresh caches.
        raise CliError(f"leadership lost: {_first(group)}", ExitCode.INTERNAL) from None
    except* OSError as group:  # a port that is taken
        raise CliError(str(_first(group)), ExitCode.USAGE) from None
    except* KubeError as group:
        raise CliError(str(_first(group)), ExitCode.INTERNAL) from None
    return int(ExitCode.OK)


def _first(group: BaseExceptionGroup[Exception]) -> BaseException:
    """Return one error of a group, however deep the groups of tasks are."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _until_told(settings: ControllerConfig) -> None:
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(Controller(settings, _plane(settings)).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


def _plane(settings: ControllerConfig) -> Beside | None:
    """Return what serves the control plane beside the operator, where that is wanted."""
    if not settings.plane:
        return None
    from taskd.plane.hosting import Host, PlaneSettings, PlaneSettingsError  # gRPC is not needed without it
    from taskd.plane.names import PlaneNames

    names = PlaneNames(jobs=settings.namespace or None)
    try:
        host = Host(
            PlaneSettings(
                settings.plane_listen,
                settings.plane_certificates,
                settings.plane_insecure,
                names,
                issued=settings.issues,
            ).checked()
        )
    except PlaneSettingsError as error:
        raise ConfigError(str(error)) from error

    async def serve(cluster: Cluster, recorder: EventRecorder, keeper: AuthorityKeeper | None) -> None:
        if keeper is not None:
            await keeper.ready()
        await host.run(
            cluster.client,
            jobs=cluster.jobs,
            pods=cluster.pods,
            nodes=cluster.nodes,
            recorder=recorder,
            groups=cluster.gang,
            papers=keeper.server_papers if keeper is not None else None,
        )

    return serve


def _log_to_stderr(level: str) -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
