"""Many clients at once, clients that leave, and memory over a long run."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest

from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc as rpc
from support.door import generate_all, request
from support.stack import SERVICES, Stack

PER_REQUEST_BYTES = 20
"""Report 23: growth per request that counts as a leak."""
ALLOCATOR_BYTES = 4 << 20
"""What allocators still take for themselves after the warm-up."""
AT_ONCE = 64
"""Clients of the long run, each with one request under way."""


def test_256_streams_complete(stack: Stack) -> None:
    """The default model, every stream to its last token and usage that adds up."""
    before = stack.load().totals["output_tokens"]
    messages = [request(f"Number {n}: the", max_tokens=6, ignore_eos=True, temperature=0) for n in range(256)]
    answers = asyncio.run(generate_all(stack.address, messages, timeout_s=280))
    assert [len(answer.token_ids) for answer in answers] == [6] * 256
    assert {answer.finished[0].usage.completion_tokens for answer in answers} == {6}
    assert stack.load().totals["output_tokens"] - before == 6 * 256
    stack.wait_idle()


def test_clients_that_vanish_leave_nothing(tiny_stack: Stack) -> None:
    """Reports 20-22: streams dropped at random moments, round after round; then all blocks are back."""
    tiny_stack.start()
    tiny_stack.wait_ready()
    rng = random.Random(1)

    async def round_of_drops() -> None:
        async with grpc.aio.insecure_channel(tiny_stack.address) as channel:
            stub = rpc.GenerationServiceStub(channel)

            async def run_and_leave() -> None:
                call = stub.Generate(request([7, 8, 9], max_tokens=1500, ignore_eos=True))
                await asyncio.sleep(rng.random() * 0.3)
                call.cancel()

            await asyncio.gather(*(run_and_leave() for _ in range(120)))

    for _ in range(5):
        asyncio.run(round_of_drops())
        tiny_stack.wait_idle()
    answer = asyncio.run(
        generate_all(tiny_stack.address, [request([1, 2, 3], max_tokens=5, ignore_eos=True)])
    )[0]
    assert len(answer.token_ids) == 5


@pytest.mark.timeout(900)
def test_memory_is_flat_over_20000_requests(tiny_stack: Stack) -> None:
    """Report 23: the resident memory of each service does not grow with the requests it has served, half of
    them streamed.
    """
    tiny_stack.start()
    tiny_stack.wait_ready()

    async def many(count: int, first: int) -> None:
        async with grpc.aio.insecure_channel(tiny_stack.address) as channel:
            stub = rpc.GenerationServiceStub(channel)

            async def client(number: int) -> None:
                for turn in range(count // AT_ONCE):
                    own = [3 + (first + number + turn) % 400, 3 + turn % 400, 5]
                    asked = request(own, max_tokens=1)
                    if turn % 2:
                        await stub.GenerateOnce(pb.GenerateOnceRequest(request=asked))
                        continue
                    async for _ in stub.Generate(asked):
                        pass

            await asyncio.gather(*(client(number) for number in range(AT_ONCE)))

    asyncio.run(many(8_192, 0))  # warm: allocator pools, code paths, prefix cache
    before = {name: tiny_stack.resident_bytes(name) for name in SERVICES}
    asyncio.run(many(12_032, 1))
    growth = {name: tiny_stack.resident_bytes(name) - before[name] for name in SERVICES}
    assert all(value < PER_REQUEST_BYTES * 12_000 + ALLOCATOR_BYTES for value in growth.values()), growth
