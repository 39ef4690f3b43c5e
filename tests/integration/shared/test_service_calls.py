"""Calls into a host over real gRPC: errors as statuses, bounds, cancellation."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hundredfold.rpc import RequestError
from hundredfold.v1 import control_pb2, generation_pb2
from support.echo_host import MIB, SERVING, Running, eventually, running


async def test_request_errors_become_rich_statuses() -> None:
    async with running() as service:
        error = await service.refusal("refuse")
        assert (error.code(), error.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "top_p = 7 is above 1",
        )
        assert RequestError.from_rpc(error).field == "sampling.top_p"
        again = RequestError.from_rpc(await service.refusal("retry"))
        assert (again.code, again.retry_after_s) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1.5)
        stream = service.stream("refuse")
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_messages_of_any_length_fit_into_a_status() -> None:
    async with running() as service:
        error = await service.refusal("long")
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(error.details()).startswith("🙂🙂")


async def test_other_errors_show_an_id_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as service:
        with caplog.at_level(logging.ERROR):
            unary = await service.refusal("fail")
            stream = service.stream("fail")
            code, details = await stream.code(), await stream.details()
        assert unary.code() is code is grpc.StatusCode.INTERNAL
        for text in (str(unary.details()), str(details)):
            assert "secret" not in text
            assert "KeyError" not in text
        error_id = str(unary.details()).split()[2].rstrip(";")
        record = next(
            r for r in caplog.records if r.__dict__["hundredfold_values"].get("error_id") == error_id
        )
        assert record.exc_info is not None
        assert "/secret/path" in str(record.exc_info[1])


async def test_a_message_that_is_none_is_the_callers_fault() -> None:
    async with running() as service:
        channel: Any = service.channel
        unary = channel.unary_unary("/hundredfold.v1.GenerationService/GenerateOnce")(b"\xff\xff\xff")
        assert await unary.code() is grpc.StatusCode.INVALID_ARGUMENT
        stream = channel.unary_stream("/hundredfold.v1.GenerationService/Generate")(b"\xff\xff\xff")
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        both = channel.stream_stream("/hundredfold.internal.v1.SchedulerService/Attach")()
        await both.write(b"\xff\xff\xff")
        assert await both.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_goes_away_cancels_the_handler() -> None:
    async with running() as service:
        stream = service.stream("hang")
        await stream.read()
        assert service.echo.running() == 1
        stream.cancel()
        await eventually(lambda: service.echo.ended == ["cancelled", "hang"])
        expired = service.generation.Generate(generation_pb2.GenerateRequest(text="hang"), timeout=0.2)
        assert await expired.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(lambda: service.echo.running() == 0)
        assert service.host._book.active == 0


async def test_messages_are_bounded_both_ways() -> None:
    async with running() as service:
        assert len(await service.once("x" * 20 * MIB)) == 20 * MIB
        assert (await service.refusal("x" * 65 * MIB)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await service.once("still here") == "x" * 10
    async with running(max_message_bytes=65536) as service:
        error = await service.refusal("x" * 70_000)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "65536" in str(error.details())


@pytest.mark.parametrize("size", [20_000, 10 * MIB])
async def test_metadata_is_bounded(size: int) -> None:
    async with running() as service:
        assert await service.once("ok", metadata=(("note", "x" * 10_000),)) == "xx"
        error = await service.refusal("no", metadata=(("note", "x" * size),), timeout=10)
        assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        assert await service.once("still here") == "x" * 10


async def test_calls_are_bounded_and_probes_are_not() -> None:
    async with running(max_concurrent_rpcs=3) as service:
        streams = [service.stream("hang") for _ in range(3)]
        for stream in streams:
            await stream.read()
        error = await service.refusal("one more")
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_concurrent_rpcs is 3" in str(error.details())
        assert RequestError.from_rpc(error).retry_after_s == 1.0
        attached = service.attach()  # refused before it says a word
        assert await attached.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await service.status() == SERVING
        assert await service.control.GetLoad(control_pb2.GetLoadRequest())
        streams[0].cancel()
        await eventually(lambda: service.echo.running() == 2)
        assert await service.once("fits") == "xxxx"


async def test_reflection_only_when_asked_for() -> None:
    async def services(service: Running) -> list[str]:
        channel: Any = service.channel
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
        return [entry.name for entry in answer.list_services_response.service]

    async with running() as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services(service)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    async with running(reflection=True) as service:
        assert "hundredfold.v1.GenerationService" in await services(service)
