"""A TCP proxy whose connections can be cut, to stand between a client and a server that lives on."""

from __future__ import annotations

import asyncio
import contextlib


class CuttableProxy:
    """Forwards TCP to a server; `cut` resets every connection, `down` also refuses new ones."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def down(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, upstream_writer}
        await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))
        self._writers -= {writer, upstream_writer}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
