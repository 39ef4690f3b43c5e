"""The streams of one HTTP request: read together, in any order, and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence

from hundredfold.client import AsyncGenerateStream, Event, Started

PATIENCE_S = 1.0
"""How long the first token is waited for before the client is told that its stream begins: until then a
refusal can still be an HTTP status."""

_QUEUED = 4
"""Events per stream that are read ahead of a slow client."""

Numbered = tuple[int, Event]
"""The number of a prompt, and an event of its answer."""


async def read_together(streams: Sequence[AsyncGenerateStream]) -> AsyncGenerator[Numbered, None]:
    """All events of all streams, each stream's in their order.

    The first stream that fails ends all with its error, mostly a ``RequestFailed``; so does leaving, at once.
    """
    if len(streams) == 1:
        async with streams[0] as only:
            async for event in only:
                yield 0, event
        return
    queue: asyncio.Queue[Numbered | asyncio.Task[None]] = asyncio.Queue()
    room = asyncio.Semaphore(_QUEUED * len(streams))
    tasks = [asyncio.create_task(_pump(number, stream, queue, room)) for number, stream in enumerate(streams)]
    for task in tasks:
        task.add_done_callback(queue.put_nowait)  # however it ended
    try:
        running = len(streams)
        while running:
            item = await queue.get()
            if isinstance(item, asyncio.Task):
                running -= 1
                item.result()
            else:
                room.release()
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    number: int,
    stream: AsyncGenerateStream,
    queue: asyncio.Queue[Numbered | asyncio.Task[None]],
    room: asyncio.Semaphore,
) -> None:
    async with stream:
        async for event in stream:
            await room.acquire()
            queue.put_nowait((number, event))


class Opened:
    """Events whose beginning has been awaited.

    Args:
        events: From ``read_together``.
        prompts: How many streams these come from.
    """

    def __init__(self, events: AsyncGenerator[Numbered, None], prompts: int) -> None:
        self._events = events
        self._prompts = prompts
        self._seen: list[Numbered] = []
        self._pending: asyncio.Task[Numbered | None] | None = None

    async def settle(self, patience_s: float = PATIENCE_S) -> None:
        """Return when all prompts were accepted and a token is there, or patience is over.

        Raises:
            RequestFailed: A prompt was refused, or failed before that.
        """
        deadline = time.monotonic() + patience_s
        started = 0
        while True:
            event = await self._next(None if started < self._prompts else deadline - time.monotonic())
            if event is None:
                return
            self._seen.append(event)
            if isinstance(event[1], Started):
                started += 1
            elif started >= self._prompts:
                return

    async def read(self) -> AsyncGenerator[Numbered, None]:
        """All events from the first."""
        for event in self._seen:
            yield event
        self._seen.clear()
        while (following := await self._next(None)) is not None:
            yield following

    async def close(self) -> None:
        """End what runs."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.gather(self._pending, return_exceptions=True)
        await self._events.aclose()

    async def _next(self, timeout_s: float | None) -> Numbered | None:
        """The next event; None at the end, and when the time is over."""
        if timeout_s is None and self._pending is None:
            return await anext(self._events, None)
        if self._pending is None:
            self._pending = asyncio.create_task(self._advance())
        await asyncio.wait({self._pending}, timeout=None if timeout_s is None else max(0.0, timeout_s))
        if not self._pending.done():
            return None
        done, self._pending = self._pending, None
        return done.result()

    async def _advance(self) -> Numbered | None:
        return await anext(self._events, None)


@contextlib.asynccontextmanager
async def opened(streams: Sequence[AsyncGenerateStream]) -> AsyncGenerator[Opened, None]:
    """The streams' events for as long as the block runs."""
    opening = Opened(read_together(streams), len(streams))
    try:
        yield opening
    finally:
        await opening.close()
