"""The Authorization header, kept fresh.

A pod's token is rotated about once an hour and the old one stays valid for a while, so the file is read again
each minute, and at once when the server says 401. Reading it for each request would cost a system call per
pod for nothing.
"""

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from taskd.kube.config import ClusterConfig, ExecPlugin
from taskd.kube.errors import ConfigError

REREAD_S = 60.0
EXEC_LIMIT_S = 30.0


class Credentials:
    """Makes the header for the next request."""

    def __init__(self, config: ClusterConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._read_at: float | None = None
        self._header: str | None = None
        self._lock = asyncio.Lock()
        if config.token:
            self._header = f"Bearer {config.token}"
        elif config.username and config.password:
            pair = base64.b64encode(f"{config.username}:{config.password}".encode()).decode()
            self._header = f"Basic {pair}"
        # A token that stands beside a token file is only its first value, as in client-go.
        self._renewable = bool(config.token_file or (config.exec_plugin and self._header is None))

    async def header(self) -> str | None:
        """Return the value for ``Authorization``, or None where a certificate or nobody speaks for us."""
        if self._renewable and self._is_due():
            async with self._lock:
                if self._is_due():
                    self._header = await self._renew()
                    self._read_at = self._now()
        return self._header

    def refused(self) -> bool:
        """Note a 401; True if another try may have a newer token."""
        if self._renewable:
            self._read_at = None
        return self._renewable

    def _is_due(self) -> bool:
        if self._read_at is None:
            return True
        return self._config.token_file is not None and self._now() - self._read_at >= REREAD_S

    async def _renew(self) -> str:
        if self._config.token_file is not None:
            try:
                return f"Bearer {Path(self._config.token_file).read_text().strip()}"
            except OSError as error:
                if self._header is not None:  # half-way through a rotation: the old one is still good
                    return self._header
                raise ConfigError(f"the token file cannot be read: {error}") from error
        if self._config.exec_plugin is None:
            raise ConfigError("nothing to renew a token from")
        return f"Bearer {await _run_plugin(self._config.exec_plugin)}"


class _ExecStatus(msgspec.Struct):
    token: str = ""


class _ExecCredential(msgspec.Struct):
    status: _ExecStatus


async def _run_plugin(plugin: ExecPlugin) -> str:
    name = f"the credential plugin {plugin.command}"
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    env = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}
    try:
        child = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ConfigError(f"{name} cannot be started: {error}") from error
    try:
        async with asyncio.timeout(EXEC_LIMIT_S):
            out, err = await child.communicate()
    except TimeoutError:
        child.kill()
        await child.wait()
        raise ConfigError(f"{name} did not answer in {EXEC_LIMIT_S:g} s") from None
    if child.returncode != 0:
        tail = err.decode(errors="replace").strip()[-300:]
        raise ConfigError(f"{name} ended with {child.returncode}: {tail}")
    try:
        token = msgspec.json.decode(out, type=_ExecCredential).status.token
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name} printed no ExecCredential: {error}") from error
    if not token:
        raise ConfigError(f"{name} printed no token")
    return token
