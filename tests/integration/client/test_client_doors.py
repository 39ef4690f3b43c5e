"""A client of several doors: calls take turns, and what one door loses another one goes on with."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from hundredfold import AsyncClient, Client
from hundredfold.client import Cancelled, Delta, NotFound, RetryPolicy, Started, Unavailable
from support.fake_door import FakeDoor, expected_ids, expected_text, serving
from support.pace import at_most


async def test_calls_take_turns():
    async with serving(FakeDoor()) as one, serving(FakeDoor()) as other:
        async with AsyncClient(f"127.0.0.1:{one.port},127.0.0.1:{other.port}") as client:
            for _ in range(6):
                await client.generate("x", max_tokens=1).result()
        assert Counter({"one": len(one.requests), "other": len(other.requests)}) == {"one": 3, "other": 3}


async def test_a_stream_goes_on_at_another_door():
    async with serving(FakeDoor()) as staying:
        address = f"127.0.0.1:{staying.port}"
        async with serving(FakeDoor(step_s=0.02)) as going:
            client = AsyncClient(f"127.0.0.1:{going.port},{address}")
            stream = client.generate("x", max_tokens=30, seed=5)
            events = aiter(stream)
            while not isinstance(await anext(events), Delta):
                pass
            assert len(going.requests) == 1
        async for _ in events:
            pass
        answer = stream.answer
        assert answer.token_ids == tuple(expected_ids(30, 5))
        assert answer.text == expected_text(30)
        assert stream.resumes == 1
        assert len(staying.requests) == 1
        await client.close()


async def test_a_door_that_is_away_costs_calls_little():
    async with serving(FakeDoor()) as gone:
        port = gone.port
    async with serving(FakeDoor()) as door:
        client = AsyncClient(f"127.0.0.1:{port},127.0.0.1:{door.port}")
        with at_most(5):
            for _ in range(10):
                assert await client.encode("é", add_special_tokens=False) == [195, 169]
        await client.close()


async def test_the_blocking_client_too():
    async with serving(FakeDoor()) as gone:
        port = gone.port
    async with serving(FakeDoor()) as door:

        def talk() -> list[str]:
            with Client(f"127.0.0.1:{port},127.0.0.1:{door.port}") as client:
                return [client.generate("x", max_tokens=3).result().text for _ in range(3)]

        assert await asyncio.to_thread(talk) == [expected_text(3)] * 3


async def test_abort_finds_the_door_where_the_request_runs():
    async with serving(FakeDoor()) as gone:
        away = gone.port
    async with serving(FakeDoor()) as one, serving(FakeDoor()) as other:
        address = f"127.0.0.1:{one.port},127.0.0.1:{away},127.0.0.1:{other.port}"
        async with AsyncClient(address) as client:
            for abort in (client.abort, lambda name: asyncio.to_thread(blocking_abort, address, name)):
                for _ in range(3):
                    stream = client.generate("x", max_tokens=10_000)
                    events = aiter(stream)
                    while not isinstance(await anext(events), Started):
                        pass
                    await abort(stream.request_id)
                    with pytest.raises(Cancelled):
                        await stream.result()
                with at_most(2), pytest.raises(NotFound, match="no request nobody"):
                    await abort("nobody")
        assert one.requests
        assert other.requests
    with pytest.raises(Unavailable):
        await asyncio.to_thread(blocking_abort, address, "nobody")


def blocking_abort(address: str, request_id: str) -> None:
    with Client(address, retry=RetryPolicy(connect_s=0.3)) as client:
        client.abort(request_id)


async def test_what_is_about_one_server_is_refused_by_a_client_of_two():
    async with serving(FakeDoor()) as one, serving(FakeDoor()) as other:
        address = f"127.0.0.1:{one.port},127.0.0.1:{other.port}"
        async with AsyncClient(address) as client:
            with pytest.raises(ValueError, match="drain is about one server and this client has 2"):
                await client.drain()
            with pytest.raises(ValueError, match="load is about one server"):
                await client.load()
        with Client(address) as blocking:
            with pytest.raises(ValueError, match="drain is about one server"):
                blocking.drain()
            with pytest.raises(ValueError, match="load is about one server"):
                blocking.load()
        assert not one.calls + other.calls
