"""A gateway on this event loop, before whatever door a test has, and a small HTTP client to talk to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from hundredfold_gateway.service import GatewayService
from hundredfold_gateway.settings import GatewaySettings

JSON = "application/json"


@dataclass
class Reply:
    """A whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """The data of each server-sent event; ``[DONE]`` as a string."""
        frames = [frame.removeprefix("data: ") for frame in self.body.decode().split("\n\n") if frame]
        return [frame if frame == "[DONE]" else json.loads(frame) for frame in frames]


@dataclass
class Connection:
    """One HTTP/1.1 connection, read by hand so that tests can stop reading and leave."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        fields = {
            "host": "gateway",
            "content-type": JSON,
            "content-length": str(len(body)),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in fields.items()}

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty at its end."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def reply(self) -> Reply:
        status, headers = await self.head()
        if "content-length" in headers:
            return Reply(status, headers, await self.reader.readexactly(int(headers["content-length"])))
        body = b""
        while chunk := await self.chunk():
            body += chunk
        return Reply(status, headers, body)

    def leave(self) -> None:
        self.writer.close()


@dataclass
class RunningGateway:
    """A gateway that serves."""

    service: GatewayService
    connections: list[Connection] = field(default_factory=list)
    task: asyncio.Task[int] | None = None

    @property
    def port(self) -> int:
        return int(self.service.addresses[0].rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"http://{self.service.addresses[0]}"

    async def connect(self) -> Connection:
        made = Connection(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24))
        self.connections.append(made)
        return made

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        connection = await self.connect()
        await connection.send(method, path, body, headers)
        reply = await connection.reply()
        connection.leave()
        return reply

    async def post(self, path: str, headers: Mapping[str, str] | None = None, **body: Any) -> Reply:
        return await self.request("POST", path, json.dumps(body).encode(), headers)

    async def get(self, path: str) -> Reply:
        return await self.request("GET", path)

    async def complete(self, **body: Any) -> Reply:
        return await self.post("/v1/completions", **{"model": "fake", "prompt": "x", **body})

    async def chat(self, **body: Any) -> Reply:
        messages = [{"role": "user", "content": "x"}]
        return await self.post("/v1/chat/completions", **{"model": "fake", "messages": messages, **body})


@asynccontextmanager
async def running_gateway(*doors: str, ready: bool = True, **settings: Any) -> AsyncIterator[RunningGateway]:
    """A gateway of these doors. At the end nothing of any request may be left."""
    told: dict[str, Any] = {
        "listen": ("127.0.0.1:0",),
        "control_listen": ("127.0.0.1:0",),
        "door": doors,
        "recovery_grace_s": 5,
    }
    service = GatewayService(GatewaySettings(**{**told, **settings}), install_signals=False)
    gateway = RunningGateway(service)
    gateway.task = asyncio.create_task(service.run())
    started = asyncio.create_task(service.host.started.wait())
    await asyncio.wait({gateway.task, started}, return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    try:
        if ready:
            await _until_ready(gateway)
        yield gateway
        for connection in gateway.connections:
            connection.leave()
        async with asyncio.timeout(30):
            while service.gate.running:  # noqa: ASYNC110  # connections end one by one
                await asyncio.sleep(0.005)
    finally:
        service.host.request_stop(grace_s=0.2)
        with suppress(asyncio.CancelledError):
            assert await gateway.task == 0


async def _until_ready(gateway: RunningGateway) -> None:
    async with asyncio.timeout(30):
        while (await gateway.get("/health")).status != 200:  # noqa: ASYNC110  # the gateway has no event
            await asyncio.sleep(0.01)
