"""Streams in trouble: clients that leave or read slowly, doors that die, deadlines, a gateway that stops."""

from __future__ import annotations

import asyncio
import json
import time

import grpc
import pytest

from hundredfold.rpc import RequestError
from support.eventually import eventually
from support.fake_door import FakeDoor, expected_text, serving
from support.pace import at_most
from support.running_gateway import Connection, RunningGateway, running_gateway


async def start(gateway: RunningGateway, **body: object) -> Connection:
    """A stream whose head has been read."""
    connection = await gateway.connect()
    asked = {"prompt": "x", "max_tokens": 1000, "stream": True, **body}
    await connection.send("POST", "/v1/completions", json.dumps(asked).encode())
    assert (await connection.head())[0] == 200
    return connection


async def rest(connection: Connection) -> tuple[str, list[str]]:
    """The text that still comes, and what else does."""
    text, others = "", []
    while chunk := await connection.chunk():
        frame = chunk.decode().removeprefix("data: ").strip()
        if frame.startswith('{"id"'):
            text += json.loads(frame)["choices"][0]["text"]
        else:
            others.append(frame)
    return text, others


@pytest.mark.parametrize("half", [False, True], ids=["gone", "half closed"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_cancelled_at_the_door(
    gateway: RunningGateway, door: FakeDoor, stream: bool, half: bool
):
    connection = await gateway.connect()
    body = {"prompt": ["a", "b"], "max_tokens": 20_000, "stream": stream}
    await connection.send("POST", "/v1/completions", json.dumps(body).encode())
    await eventually(lambda: len(door.running) == 2)
    with at_most(1):
        if half:
            connection.writer.write_eof()
        else:
            connection.leave()
        await door.idle()
    await eventually(lambda: gateway.service.gate.running == 0)


async def test_a_client_that_leaves_before_anything_came(door: FakeDoor, gateway: RunningGateway):
    door.step_s = 30
    connection = await gateway.connect()
    await connection.send("POST", "/v1/completions", b'{"prompt": "x", "stream": true}')
    await eventually(lambda: door.running)
    connection.leave()
    await door.idle()


async def test_fifty_leave_at_once(gateway: RunningGateway, door: FakeDoor):
    streams = await asyncio.gather(*(start(gateway) for _ in range(50)))
    for stream in streams:
        stream.writer.transport.abort()
    await door.idle()
    await eventually(lambda: gateway.service.gate.running == 0)
    assert (await gateway.complete(max_tokens=2)).status == 200


async def test_a_broken_stream_is_resumed(gateway: RunningGateway, door: FakeDoor):
    door.drop_after.extend([3, 5, 2])
    connection = await start(gateway, max_tokens=40)
    text, others = await rest(connection)
    assert text == expected_text(40)
    assert others == ["[DONE]"]
    assert len(door.requests) == 4


async def test_a_stream_goes_on_at_another_door(door: FakeDoor):
    async with serving(FakeDoor(step_s=0.01)) as going:
        doors = (f"127.0.0.1:{going.port}", f"127.0.0.1:{door.port}")
        async with running_gateway(*doors) as gateway:
            streams = [await start(gateway, max_tokens=200, seed=1) for _ in range(4)]
            assert len(going.requests) == 2
            reading = [asyncio.create_task(rest(stream)) for stream in streams]
            await asyncio.sleep(0.1)
            await going.stop()
            ends = await asyncio.gather(*reading)
            assert ends == [(expected_text(200), ["[DONE]"])] * 4


async def test_an_error_in_the_middle_is_an_event_and_no_done_follows(
    gateway: RunningGateway, door: FakeDoor
):
    connection = await start(gateway)
    await connection.chunk()
    door.failing = RequestError(grpc.StatusCode.INTERNAL, "the worker gave up on it")
    _, (last,) = await rest(connection)
    assert json.loads(last)["error"]["message"] == "the worker gave up on it"
    assert json.loads(last)["error"]["code"] == "internal_error"


async def test_a_deadline_ends_whole_and_streamed(gateway: RunningGateway, door: FakeDoor):
    headers = {"x-request-timeout": "1.5"}
    whole = await gateway.post("/v1/completions", headers, prompt="x", max_tokens=20_000)
    assert (whole.status, whole.error["code"]) == (504, "timeout")
    streamed = await gateway.post("/v1/completions", headers, prompt="x", max_tokens=20_000, stream=True)
    assert streamed.status == 200
    assert streamed.events[-1]["error"]["code"] == "timeout"
    await door.idle()


async def test_a_stop_lets_streams_finish_and_refuses_new_ones(door: FakeDoor):
    async with running_gateway(f"127.0.0.1:{door.port}") as gateway:
        connection = await start(gateway, max_tokens=100)
        gateway.service.host.request_stop(grace_s=10)
        await eventually(lambda: gateway.service.host.draining)
        refused = await gateway.complete()
        assert (refused.status, refused.error["code"]) == (503, "unavailable")
        health = await gateway.get("/health")
        assert (health.status, health.json["status"]) == (503, "draining")
        assert await rest(connection) == (expected_text(100), ["[DONE]"])
        assert gateway.task is not None
        assert await asyncio.wait_for(gateway.task, 30) == 0


async def test_after_the_grace_streams_end_with_an_error(door: FakeDoor):
    async with running_gateway(f"127.0.0.1:{door.port}") as gateway:
        reading = await start(gateway, max_tokens=20_000)
        sleeping = await start(gateway, max_tokens=20_000)
        gateway.service.host.request_stop(grace_s=0.3)
        text, others = await rest(reading)
        assert text
        assert json.loads(others[-1])["error"]["code"] == "unavailable"
        assert "[DONE]" not in others
        assert gateway.task is not None
        assert await asyncio.wait_for(gateway.task, 30) == 0
        sleeping.leave()
    await door.idle()


async def test_readiness_follows_the_doors():
    async with serving(FakeDoor()) as door:
        address = f"127.0.0.1:{door.port}"
        async with running_gateway(address, recovery_grace_s=0.4) as gateway:
            assert (await gateway.get("/health")).json == {"status": "ok"}
            await door.stop()
            began = time.monotonic()
            while (await gateway.get("/health")).status == 200:
                assert time.monotonic() - began < 30
                await asyncio.sleep(0.02)
            assert time.monotonic() - began >= 0.3
            assert (await gateway.get("/health")).json == {"status": "degraded"}
