"""Ask for a connection, and for nothing else: whether anybody's kernel answers at an address."""

import asyncio
import contextlib

from taskd.core.reach import Knock


async def knock(address: str, limit_s: float) -> Knock:
    """Knock at an address; never fails, and takes no longer than the limit."""
    host, _, port = address.rpartition(":")
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(limit_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return Knock.REFUSED
    except (OSError, TimeoutError, ValueError):
        return Knock.SILENT
    finally:
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.transport.abort()  # nothing is left to say, nor to wait for
    return Knock.OPEN
