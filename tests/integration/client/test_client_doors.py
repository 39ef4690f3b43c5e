"""A client of several doors: calls take turns, and what one door loses another one goes on with."""

from __future__ import annotations

import asyncio
from collections import Counter

from hundredfold import AsyncClient, Client
from hundredfold.client import Delta
from support.fake_door import FakeDoor, expected_ids, expected_text, serving


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
    async with asyncio.timeout(5), serving(FakeDoor()) as door:
        client = AsyncClient(f"127.0.0.1:{port},127.0.0.1:{door.port}")
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
