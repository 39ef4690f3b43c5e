"""The tokenizer service and a fake scheduler, both real gRPC servers on this event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from hundredfold.v1 import generation_pb2_grpc, tokenizer_pb2_grpc
from hundredfold_tokenizer.service import TokenizerService, load_model
from hundredfold_tokenizer.settings import TokenizerSettings
from support.door import OPTIONS, Answer
from support.fake_scheduler import FakeScheduler


@dataclass
class RunningDoor:
    """A door that serves."""

    service: TokenizerService
    scheduler: FakeScheduler
    channel: grpc.aio.Channel

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.service.host.addresses[0]

    @property
    def generation(self) -> Any:
        """Stub of GenerationService."""
        return generation_pb2_grpc.GenerationServiceStub(self.channel)

    @property
    def tokenizer(self) -> Any:
        """Stub of TokenizerService."""
        return tokenizer_pb2_grpc.TokenizerServiceStub(self.channel)

    async def until_attached(self) -> None:
        """Wait for the scheduler."""
        await until(lambda: self.service.attachment.link.attached)

    def leftovers(self) -> dict[str, int]:
        """What is still held for requests; all zero when none runs."""
        door = self.service.door
        return {
            "registry": len(door.registry),
            "attachment": len(self.service.attachment),
            "unread_bytes": door.budget.num_bytes,
            "outboxes": len(door.budget),
        }


async def until(condition: Any, timeout_s: float = 30.0) -> None:
    """Wait until ``condition()`` holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 (conditions of all kinds, few of which have an event)
            await asyncio.sleep(0.005)


async def read_to_end(call: Any) -> Answer:
    """What comes on a stream from now on; raises the status that it ends with."""
    answer = Answer()
    while (event := await call.read()) is not grpc.aio.EOF:
        answer.take(event)
    return answer


@asynccontextmanager
async def running_door(
    model: Path, scheduler: FakeScheduler | None = None, **settings: Any
) -> AsyncIterator[RunningDoor]:
    """A door over ``model`` and a fake scheduler; checks at the end that nothing of any request is left."""
    fake = scheduler if scheduler is not None else FakeScheduler()
    if fake.server is None and fake.port == 0:
        await fake.start()
    values = {"listen": "127.0.0.1:0", "model": str(model), "scheduler": fake.address} | settings
    told = TokenizerSettings(**values)
    service = TokenizerService(told, load_model(told), install_signals=False)
    task = asyncio.create_task(service.run())
    await service.host.started.wait()
    try:
        async with grpc.aio.insecure_channel(service.host.addresses[0], options=OPTIONS) as channel:
            door = RunningDoor(service, fake, channel)
            if fake.server is not None and fake.fingerprint is None:
                await door.until_attached()
            yield door
            await until(lambda: not any(door.leftovers().values()))
    finally:
        service.host.request_stop(grace_s=0.5)
        with contextlib.suppress(asyncio.CancelledError):
            assert await task == 0
        await fake.kill()
