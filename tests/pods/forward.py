"""A Service's address: what connects to it is led to the pod that a file names now, or refused."""

import asyncio
import contextlib
import sys
from pathlib import Path

HOST, PORTS, TARGET = sys.argv[1], sys.argv[2].split(","), Path(sys.argv[3])


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def serve(port: int) -> None:
    """Lead the connections to one port on."""

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection(TARGET.read_text().strip() or "0.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(pump(reader, here), pump(there, writer))

    async with await asyncio.start_server(lead, HOST, port) as server:
        await server.serve_forever()


async def main() -> None:
    """Serve all ports."""
    await asyncio.gather(*(serve(int(port)) for port in PORTS))


asyncio.run(main())
