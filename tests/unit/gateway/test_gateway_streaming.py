"""What a slow or absent reader does to a stream: nothing is read ahead for it, and nothing is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.gate import Gate
from hundredfold_gateway.generation import read_together
from hundredfold_gateway.http.events import EventStream
from hundredfold_gateway.http.presence import ClientGone, while_there


class Client:
    """Both ends of an ASGI connection."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.gone = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent.append(message)

    @property
    def frames(self) -> list[str]:
        bodies = [
            message["body"].decode() for message in self.sent if message["type"] == "http.response.body"
        ]
        return [body.removeprefix("data: ").strip() for body in bodies]


class Source:
    """Objects without an end, or with an error as one; counts what was taken, and says when it was closed."""

    def __init__(self, error: ApiError | None = None, after: int = 1_000_000) -> None:
        self.taken = 0
        self.closed = False
        self._error = error
        self._after = after

    async def objects(self) -> AsyncGenerator[dict[str, int], None]:
        try:
            while self.taken < self._after:
                self.taken += 1
                yield {"n": self.taken}
                await asyncio.sleep(0)
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


def stream(
    source: Source, held: contextlib.AsyncExitStack | None = None
) -> tuple[EventStream, asyncio.Event]:
    cut = asyncio.Event()
    return EventStream(source.objects(), held or contextlib.AsyncExitStack(), cut), cut


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # the source has no event for it
            await asyncio.sleep(0)


async def test_nothing_is_read_ahead_of_a_reader_that_stops():
    client, source = Client(), Source()
    response, _ = stream(source)
    running = asyncio.create_task(response({}, client.receive, client.send))
    await until(lambda: len(client.frames) > 3)
    client.reads.clear()
    sent = len(client.frames)
    for _ in range(200):
        await asyncio.sleep(0)
    assert source.taken <= sent + 2
    client.gone.set()
    await asyncio.wait_for(running, 30)
    assert source.closed


async def test_all_that_is_held_is_let_go_when_the_client_leaves():
    client, source, freed = Client(), Source(), []
    held = contextlib.AsyncExitStack()
    held.callback(freed.append, True)
    response = EventStream(source.objects(), held, asyncio.Event())
    running = asyncio.create_task(response({}, client.receive, client.send))
    await until(lambda: client.frames)
    assert not freed
    client.gone.set()
    await asyncio.wait_for(running, 30)
    assert (source.closed, freed) == (True, [True])
    assert "[DONE]" not in client.frames


async def test_an_error_is_the_last_event():
    client = Client()
    response, _ = stream(Source(ApiError(500, "broken", code="internal_error", kind="server_error"), after=2))
    await response({}, client.receive, client.send)
    *frames, last = client.frames
    assert frames == ['{"n":1}', '{"n":2}']
    assert json.loads(last) == {
        "error": {"message": "broken", "type": "server_error", "param": None, "code": "internal_error"}
    }
    assert client.sent[-1]["more_body"] is False


@pytest.mark.parametrize("reads", [True, False])
async def test_a_cut_ends_readers_and_those_who_do_not_read(reads: bool):
    client, source = Client(), Source()
    response, cut = stream(source)
    running = asyncio.create_task(response({}, client.receive, client.send))
    await until(lambda: client.frames)
    if not reads:
        client.reads.clear()
    cut.set()
    await asyncio.wait_for(running, 30)
    assert source.closed
    assert (json.loads(client.frames[-1]).get("error", {}).get("code") == "unavailable") is reads


class Stream:
    """Stands for a client's stream: events without an end, or some and then an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.taken = 0
        self.closed = False
        self._error = error

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True

    async def __aiter__(self) -> AsyncIterator[int]:
        while self._error is None or self.taken < 2:
            self.taken += 1
            yield self.taken
            await asyncio.sleep(0)
        raise self._error


@pytest.mark.parametrize("error", [TypeError("x"), asyncio.CancelledError()])
async def test_any_end_of_one_stream_reaches_the_reader_and_ends_the_others(error: BaseException):
    streams: list[Any] = [Stream(), Stream(error)]
    seen = []

    async def read() -> None:
        async for event in read_together(streams):
            seen.append(event)  # noqa: PERF401  # what came before the error

    with pytest.raises(type(error)):
        await asyncio.wait_for(read(), 30)
    assert [event for event in seen if event[0] == 1] == [(1, 1), (1, 2)]
    assert all(stream.closed for stream in streams)


async def test_streams_are_read_ahead_by_a_few_events_only():
    streams: list[Any] = [Stream(), Stream()]
    reading = read_together(streams)
    await anext(reading)
    for _ in range(200):
        await asyncio.sleep(0)
    assert 2 <= sum(stream.taken for stream in streams) <= 12
    await reading.aclose()
    assert all(stream.closed for stream in streams)


async def test_work_for_a_client_that_leaves_is_cancelled_and_has_ended():
    client, ended = Client(), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    waiting = asyncio.create_task(while_there(client.receive, asyncio.Event(), work()))
    await asyncio.sleep(0)
    client.gone.set()
    with pytest.raises(ClientGone):
        await waiting
    assert ended == [True]


def test_the_gate_counts_prompts_and_lets_go_of_them():
    closing = []
    gate = Gate(3, lambda: bool(closing))
    with gate.passing(2):
        assert gate.running == 1
        with pytest.raises(
            ApiError, match="2 prompts are in progress and 2 more would be above the limit"
        ) as full:
            gate.passing(2).__enter__()
        assert (full.value.status, full.value.retry_after_s) == (429, 1)
        with gate.passing(1):
            assert gate.running == 2
    assert gate.running == 0
    with gate.passing(3):
        pass
    closing.append(True)
    with pytest.raises(ApiError) as stopping:
        gate.passing(1).__enter__()
    assert stopping.value.status == 503
