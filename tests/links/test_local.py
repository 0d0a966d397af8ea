"""The socket of a container belongs to its owner alone, and making it changes nothing else."""

import asyncio
import os
import stat
from pathlib import Path

from taskd.links.local import LocalLink, serve_local


async def test_sockets_made_side_by_side_leave_the_mask_as_it_was(tmp_path: Path) -> None:
    """The mask is the process's: what is created afterwards must have the rights that it asks for."""
    before = os.umask(0o022)

    async def serve(_: LocalLink) -> None: ...

    try:
        paths = [tmp_path / f"{number}.sock" for number in range(3)]
        servers = await asyncio.gather(*(serve_local(str(path), serve) for path in paths))
        after = os.umask(0o022)
    finally:
        os.umask(before)
    for server in servers:
        server.close()
        await server.wait_closed()

    assert 0o022 == after
    assert [0o700] * 3 == [stat.S_IMODE(path.stat().st_mode) for path in paths]
