"""The scheduler's end of one replica's stream: one task reads, one writes, and it ends when either does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc

from hundredfold.internal.v1 import scheduler_pb2
from hundredfold.rpc import RequestError
from hundredfold_scheduler.codec import outputs_message
from hundredfold_scheduler.core.outbox import Outbox


class ReplicaStream:
    """Writes what the outbox holds, merged, as fast as the replica reads; the engine only ever sets an
    event.
    """

    def __init__(
        self,
        hello: scheduler_pb2.AttachHello,
        write: Callable[[scheduler_pb2.AttachResponse], Awaitable[None]],
        welcome: scheduler_pb2.AttachWelcome,
    ) -> None:
        self.replica = hello.replica
        self.outbox = Outbox()
        """What the replica has yet to be told; the engine's, once attached."""
        self._write_message = write
        self._welcome: scheduler_pb2.AttachWelcome | None = welcome
        self._something = asyncio.Event()
        self._something.set()
        self._superseded = asyncio.Event()

    def notify(self) -> None:
        """There is something to write."""
        self._something.set()

    def welcome(self, welcome: scheduler_pb2.AttachWelcome) -> None:
        """The limits have changed."""
        self._welcome = welcome
        self._something.set()

    def supersede(self) -> None:
        """A newer stream of the same replica is there."""
        self._superseded.set()

    async def run(self, listening: Coroutine[Any, Any, None]) -> None:
        """Until the replica ends its stream or a newer one takes its place. Raises ``RequestError``."""
        reader = asyncio.create_task(listening)
        writer = asyncio.create_task(self._write())
        newer = asyncio.create_task(self._superseded.wait())
        tasks: tuple[asyncio.Task[Any], ...] = (reader, writer, newer)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if newer.done():
                raise RequestError(grpc.StatusCode.ABORTED, f"a newer stream of {self.replica!r} is there")
            for task in (reader, writer):
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            if self._welcome is not None:
                welcome, self._welcome = self._welcome, None
                await self._write_message(scheduler_pb2.AttachResponse(welcome=welcome))
            if self.outbox:
                await self._write_message(outputs_message(self.outbox.drain()))
