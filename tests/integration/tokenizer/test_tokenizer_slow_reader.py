"""Clients that do not read: bounded memory, undisturbed neighbours, nothing lost for those that read
later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import grpc
import pytest

from hundredfold.v1 import generation_pb2_grpc
from support.door import Answer, request
from support.fake_scheduler import FakeScheduler, Script
from support.pace import in_time
from support.running_door import read_to_end, running_door, until

LONG, SHORT = 120_000, 60
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096)]
"""Options of a client that takes in little before it is read."""


def script_of(delay_s: float) -> FakeScheduler:
    """Long answers in big steps, short ones token by token."""

    def script(submit):  # type: ignore[no-untyped-def]
        count = submit.params.max_tokens
        ids = [65 + position % 26 for position in range(count)]
        return Script(ids=ids, step=2000, delay_s=0.02) if count > 1000 else Script(ids=ids, delay_s=delay_s)

    return FakeScheduler(script, max_model_len=10**6, max_cache_tokens=10**7)


@pytest.mark.alone
async def test_unread_output_is_bounded(bpe_directory: Path) -> None:
    """Item 137: readers that stand still hold a bounded amount, the largest ends RESOURCE_EXHAUSTED,
    others go on.
    """
    limit = 400_000
    async with running_door(bpe_directory, script_of(0.004), max_unread_bytes=limit) as door:
        narrow = grpc.aio.insecure_channel(door.address, options=NARROW)
        still = generation_pb2_grpc.GenerationServiceStub(narrow)
        stuck = [still.Generate(request("hello", max_tokens=LONG)) for _ in range(6)]
        for call in stuck:
            await call.read()
        highest = 0
        gaps: list[float] = []
        for _ in range(4):
            last = time.monotonic()
            count = 0
            async for event in door.generation.Generate(request("hello", max_tokens=SHORT)):
                highest = max(highest, door.service.door.budget.num_bytes)
                count += len(event.delta.token_ids)
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
            assert count == SHORT
        await until(lambda: len(door.scheduler.cancels) >= 1, 20)
        highest = max(highest, door.service.door.budget.num_bytes)
        assert highest <= limit + 2000 * 20  # one step may go past it before it is enforced
        in_time(max(gaps), 2.0, "the longest wait of a reader that reads")
        codes = []
        for call in stuck:
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert len((await asyncio.wait_for(read_to_end(call), 20)).token_ids) >= LONG - 2000
            codes.append(await call.code())
            assert await call.code() is grpc.StatusCode.OK or "max_unread_bytes" in (
                await call.details() or ""
            )
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
        await narrow.close()


async def test_a_late_reader_gets_everything(bpe_directory: Path) -> None:
    """Item 137: within the bound nothing is lost, and no message is too large for a client with default
    limits.
    """
    async with running_door(bpe_directory, script_of(0)) as door:
        async with grpc.aio.insecure_channel(door.address) as plain:
            call = generation_pb2_grpc.GenerationServiceStub(plain).Generate(
                request("hello", max_tokens=LONG)
            )
            await call.read()
            await until(lambda: not door.scheduler.playing and door.scheduler.submits, 20)
            answer = Answer()
            while (event := await call.read()) is not grpc.aio.EOF:
                answer.take(event)
        assert answer.token_ids == [65 + position % 26 for position in range(LONG)]
        assert answer.finished[0].usage.completion_tokens == LONG
        assert answer.deltas < LONG / 100


@pytest.mark.parametrize("streams", [64])
async def test_many_streams_share_messages(bpe_directory: Path, streams: int) -> None:
    """DESIGN §3, coalescing: many streams at once send far fewer messages than tokens, each its first at
    once.
    """
    fake = FakeScheduler(lambda submit: Script(ids=[65] * 40, delay_s=0.05))
    async with running_door(bpe_directory, fake, max_deltas_per_s=100, max_delta_delay_s=0.5) as door:

        async def one() -> Answer:
            answer = Answer()
            first = True
            async for event in door.generation.Generate(request("hello", max_tokens=40)):
                answer.take(event)
                if event.HasField("delta") and first:
                    first = False
                    assert len(event.delta.token_ids) <= 2
            return answer

        answers = await asyncio.gather(*(one() for _ in range(streams)))
        assert all(answer.token_ids == [65] * 40 for answer in answers)
        assert sum(answer.deltas for answer in answers) < streams * 40 / 4
