"""The pages of the controller: is it alive, may it be counted on, and what has it counted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from taskd.kube.errors import ConfigError


@contextlib.asynccontextmanager
async def pages(
    listen: str, *, ready: Callable[[], tuple[bool, str]], metrics: Callable[[], bytes]
) -> AsyncIterator[int]:
    """Serve `/healthz`, `/readyz` and `/metrics` while the block runs; yields the port."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise ConfigError(f"the address {listen!r} is not host:port")

    async def healthz(_request: web.Request) -> web.Response:
        # That this answers at all is the news: the event loop turns.
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        good, words = ready()
        return web.Response(text=f"{words}\n", status=200 if good else 503)

    async def counted(_request: web.Request) -> web.Response:
        return web.Response(
            body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    site = web.Application()
    site.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", counted)])
    runner = web.AppRunner(site, access_log=None)
    await runner.setup()
    try:
        server = web.TCPSite(runner, host or None, int(port))
        try:
            await server.start()
        except OSError as error:
            raise ConfigError(f"cannot listen on {listen}: {error.strerror}") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
