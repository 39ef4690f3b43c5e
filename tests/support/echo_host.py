"""An echo service on this event loop, and a client of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.internal.v1 import scheduler_pb2_grpc
from hundredfold.rpc import ServiceHost, open_channel
from hundredfold.v1 import control_pb2_grpc, generation_pb2, generation_pb2_grpc
from support.echo_service import Echo, EchoSettings, build

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ("", "readiness", "hundredfold.v1.GenerationService", "hundredfold.v1.ControlService")
MIB = 1024 * 1024


class Running:
    """A host that runs on this loop, and a channel to it."""

    def __init__(self, host: ServiceHost, echo: Echo, task: asyncio.Task[int]) -> None:
        self.host, self.echo, self.task = host, echo, task
        self.channel = open_channel(host.addresses[0], 64 * MIB)
        # The generated types are those of blocking stubs.
        self.generation: Any = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.control: Any = control_pb2_grpc.ControlServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)
        scheduler: Any = scheduler_pb2_grpc.SchedulerServiceStub(self.channel)
        self.attach = scheduler.Attach

    async def status(self, name: str = "") -> int:
        answer = await self.health.Check(health_pb2.HealthCheckRequest(service=name))
        return int(answer.status)

    def stream(self, text: str) -> Any:
        return self.generation.Generate(generation_pb2.GenerateRequest(text=text))

    async def once(self, text: str, **how: Any) -> str:
        request = generation_pb2.GenerateOnceRequest(request=generation_pb2.GenerateRequest(text=text))
        answer = await self.generation.GenerateOnce(request, **how)
        return str(answer.choices[0].content.text)

    async def refusal(self, text: str, **how: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.once(text, **how)
        return caught.value


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Running]:
    host, echo = build(EchoSettings(**settings), install_signals=False)
    host.set_ready(True)
    task = asyncio.create_task(host.run())
    await asyncio.wait_for(host.started.wait(), 30)
    service = Running(host, echo, task)
    try:
        yield service
    finally:
        await service.channel.close()
        host.request_stop(0.0)
        await asyncio.wait_for(service.task, 30)


async def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)
