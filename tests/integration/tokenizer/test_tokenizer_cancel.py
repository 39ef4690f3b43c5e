"""Clients that go away, give up, run out of time or use a name twice: the work stops and nothing is left."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from hundredfold.internal.v1 import sequence_pb2
from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc
from support.door import OPTIONS, request
from support.fake_scheduler import FakeScheduler, Script
from support.pace import at_most, in_time
from support.running_door import RunningDoor, read_to_end, running_door, until


def hangs(after: int) -> FakeScheduler:
    """Says ``after`` tokens and then nothing more."""
    return FakeScheduler(lambda submit: Script(ids=[65] * 1000, hang_after=after))


def once(message: pb.GenerateRequest) -> pb.GenerateOnceRequest:
    return pb.GenerateOnceRequest(request=message)


async def idle(door: RunningDoor) -> None:
    await until(lambda: not any(door.leftovers().values()) and not door.scheduler.playing)


@pytest.mark.parametrize("tokens", [0, 5])
@pytest.mark.parametrize("unary", [True, False])
async def test_a_cancelled_call_is_cancelled_upstream(bpe_directory: Path, tokens: int, unary: bool) -> None:
    """Items 17, 20, 131: closing the call is enough, queued or decoding, stream or unary."""
    async with running_door(bpe_directory, hangs(tokens)) as door:
        message = request("hello", max_tokens=100)
        if unary:
            call: Any = door.generation.GenerateOnce(once(message))
        else:
            call = door.generation.Generate(message)
            await call.read()
        await until(lambda: door.scheduler.submits)
        await asyncio.sleep(0.05)
        with at_most(1):
            call.cancel()
            await idle(door)
        assert door.scheduler.cancels == [door.scheduler.submits[0].stream_id]


async def test_cancelled_while_its_prompt_is_encoded(bpe_directory: Path) -> None:
    """Item 17, tokenising: nothing reaches the scheduler."""
    async with running_door(bpe_directory, FakeScheduler(max_model_len=10**6)) as door:
        text = "hello world " * 80_000
        call = door.generation.Generate(request(text, max_tokens=1))
        await until(lambda: len(door.service.door.registry) == 1)
        call.cancel()
        await idle(door)
        await asyncio.sleep(0.2)
        assert not door.scheduler.submits
        answer = await door.generation.GenerateOnce(once(request("hello", max_tokens=1)))
        assert answer.choices[0].finished.usage.completion_tokens == 1


async def test_a_killed_client(bpe_directory: Path) -> None:
    """Item 20: kill -9 of a client in a unary call; its work is gone within two seconds."""
    async with running_door(bpe_directory, hangs(3)) as door:
        code = textwrap.dedent(f"""
            import grpc
            from hundredfold.v1 import generation_pb2 as pb, generation_pb2_grpc as rpc
            stub = rpc.GenerationServiceStub(grpc.insecure_channel("{door.address}"))
            message = pb.GenerateRequest(text="hello", sampling=pb.SamplingParams(max_tokens=1000))
            stub.GenerateOnce(pb.GenerateOnceRequest(request=message))
        """)
        client = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", code])
        await until(lambda: door.scheduler.submits, 20)
        with at_most(2):
            client.send_signal(signal.SIGKILL)
            await idle(door)
        await asyncio.to_thread(client.wait)
        assert len(door.scheduler.cancels) == 1


async def test_sockets_dropped_in_the_middle(bpe_directory: Path) -> None:
    """Item 21: 120 streams drop at one instant, again and again; the next request is answered correctly."""
    fake = FakeScheduler(
        lambda submit: Script(ids=[65] * 500, delay_s=0.0 if submit.params.max_tokens < 10 else 0.2)
    )
    async with running_door(bpe_directory, fake) as door:
        for _ in range(4):
            channels = [
                grpc.aio.insecure_channel(door.address, options=[*OPTIONS, ("x", n)]) for n in range(6)
            ]
            calls = []
            for channel in channels:
                stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
                calls += [stub.Generate(request("hello", max_tokens=400)) for _ in range(20)]
            await asyncio.gather(*(call.read() for call in calls))
            await asyncio.sleep(0.1)
            await asyncio.gather(*(channel.close(None) for channel in channels))
            await idle(door)
        reply = await door.generation.GenerateOnce(once(request("hello", max_tokens=5)))
        assert list(reply.choices[0].content.token_ids) == [65] * 5


@pytest.mark.alone
async def test_a_burst_of_cancels(bpe_directory: Path) -> None:
    """Item 22: hundreds of cancels at any moment, unknown and ended ids too; every map is empty
    afterwards.
    """
    fake = FakeScheduler(lambda submit: Script(ids=[65] * 8, delay_s=0.004))
    async with running_door(bpe_directory, fake) as door:

        async def one(number: int) -> None:
            call = door.generation.Generate(request("hello", max_tokens=8))
            if number % 3:
                await call.read()
            await asyncio.sleep(0.0001 * (number % 200))
            call.cancel()
            call.cancel()

        for _ in range(2):
            await asyncio.gather(*(one(number) for number in range(250)))
        await idle(door)
        for name in ("never", "again"):
            with pytest.raises(grpc.aio.AioRpcError) as missing:
                await door.generation.Abort(pb.AbortRequest(request_id=name))
            assert missing.value.code() is grpc.StatusCode.NOT_FOUND
        with at_most(1):
            await door.generation.GenerateOnce(once(request("hello", max_tokens=1)))


async def test_abort_from_another_call(bpe_directory: Path) -> None:
    """Item 28: an aborted stream ends CANCELLED, never as a success."""
    async with running_door(bpe_directory, hangs(2)) as door:
        message = request("hello", max_tokens=100)
        message.request_id = "mine"
        call = door.generation.Generate(message)
        unary_message = request("hello", max_tokens=100)
        unary_message.request_id = "whole"
        unary = asyncio.ensure_future(door.generation.GenerateOnce(once(unary_message)))
        await until(lambda: len(door.scheduler.submits) == 2)
        for name, ending in (("mine", read_to_end(call)), ("whole", unary)):
            await door.generation.Abort(pb.AbortRequest(request_id=name))
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await ending
            assert ended.value.code() is grpc.StatusCode.CANCELLED
        await idle(door)
        assert len(door.scheduler.cancels) == 2


async def test_abort_of_a_stream_that_nobody_reads(bpe_directory: Path) -> None:
    """The work stops at once, also when the stream's own client does not take what it has."""
    fake = FakeScheduler(
        lambda submit: Script(ids=[65] * 200_000, step=500, delay_s=0.01), max_model_len=10**6
    )
    async with running_door(bpe_directory, fake) as door:
        narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096)]
        async with grpc.aio.insecure_channel(door.address, options=narrow) as channel:
            stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
            message = request("hello", max_tokens=200_000)
            message.request_id = "unread"
            call = stub.Generate(message)
            await call.read()
            await until(lambda: door.service.door.budget.num_bytes > 20_000)
            await door.generation.Abort(pb.AbortRequest(request_id="unread"))
            with at_most(1):
                await until(lambda: len(fake.cancels) == 1)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await read_to_end(call)
            assert ended.value.code() is grpc.StatusCode.CANCELLED


async def test_names_are_used_once_at_a_time(bpe_directory: Path) -> None:
    """Item 27: the second gets ALREADY_EXISTS, the first goes on; cancelling one does not touch the other."""
    fake = FakeScheduler(lambda submit: Script(ids=[65] * 20, delay_s=0.02))
    async with running_door(bpe_directory, fake) as door:
        message = request("hello", max_tokens=20)
        message.request_id = "same"
        first = aiter(door.generation.Generate(message))
        await anext(first)
        second = door.generation.Generate(message)
        with pytest.raises(grpc.aio.AioRpcError, match="'same' is in use") as refused:
            await second.read()
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        second.cancel()
        count = 0
        async for event in first:
            count += len(event.delta.token_ids)
        assert count == 20
        third = await door.generation.GenerateOnce(once(message))
        assert third.started.request_id == "same"


@pytest.mark.alone
@pytest.mark.parametrize("tokens", [0, 3])
async def test_deadlines(bpe_directory: Path, tokens: int) -> None:
    """Item 125: a deadline of 0.3 s while queued or decoding: DEADLINE_EXCEEDED, and the work is gone."""
    async with running_door(bpe_directory, hangs(tokens)) as door:
        for streamed in (False, True):
            began = time.monotonic()
            ending: Any = (
                read_to_end(door.generation.Generate(request("hello"), timeout=0.3))
                if streamed
                else door.generation.GenerateOnce(once(request("hello")), timeout=0.3)
            )
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await ending
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await idle(door)
            in_time(time.monotonic() - began, 0.8)
        assert all(0 < submit.deadline_ms <= 300 for submit in door.scheduler.submits)
        assert len(door.scheduler.cancels) == 2


async def test_no_deadline_is_zero(bpe_directory: Path) -> None:
    async with running_door(bpe_directory) as door:
        await door.generation.GenerateOnce(once(request("hello", max_tokens=1)))
        assert door.scheduler.submits[0].deadline_ms == 0


@pytest.mark.parametrize(
    ("code", "field", "retry_ms"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "", 1500),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", 0),
        (grpc.StatusCode.INTERNAL, "", 0),
        (grpc.StatusCode.INVALID_ARGUMENT, "token_ids", 0),
    ],
)
async def test_failures_of_the_scheduler_are_passed_on(
    bpe_directory: Path, code: grpc.StatusCode, field: str, retry_ms: int
) -> None:
    """Item 126, the door's side: status, message, field and retry hint as the scheduler gave them."""
    from hundredfold.rpc import RequestError

    failure = sequence_pb2.Failure(
        code=code.value[0], message="because", field=field, retry_after_ms=retry_ms
    )
    async with running_door(bpe_directory, FakeScheduler(lambda submit: Script(failure=failure))) as door:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await door.generation.GenerateOnce(once(request("hello")))
        error = RequestError.from_rpc(refused.value)
        assert (error.code, error.message) == (code, "because")
        assert error.field == (field or None)
        assert error.retry_after_s == (retry_ms / 1000 if retry_ms else None)
        assert not door.scheduler.cancels


async def test_too_many_requests(bpe_directory: Path) -> None:
    """Item 126: past max_requests a request is refused at once with a retry hint; others are untouched."""
    from hundredfold.rpc import RequestError

    async with running_door(bpe_directory, hangs(0), max_requests=10) as door:
        calls = [
            asyncio.ensure_future(door.generation.GenerateOnce(once(request("hello")))) for _ in range(50)
        ]
        await until(lambda: sum(call.done() for call in calls) == 40)
        errors = [RequestError.from_rpc(call.exception()) for call in calls if call.done()]
        assert {error.code for error in errors} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert all(error.retry_after_s is not None for error in errors)
        for call in calls:
            call.cancel()
        await idle(door)
