"""The host over real gRPC: health, drain, errors, bounds, addresses."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hundredfold.internal.v1 import scheduler_pb2, scheduler_pb2_grpc
from hundredfold.rpc import RequestError, ServiceHost, open_channel
from hundredfold.v1 import control_pb2, control_pb2_grpc, generation_pb2, generation_pb2_grpc
from support.echo_service import Echo, EchoSettings, build

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ("", "readiness", "hundredfold.v1.GenerationService", "hundredfold.v1.ControlService")
MIB = 1024 * 1024


class Running:
    """A host that runs on this loop, and a channel to it."""

    def __init__(self, host: ServiceHost, echo: Echo, task: asyncio.Task[int]) -> None:
        self.host, self.echo, self.task = host, echo, task
        self.channel = open_channel(host.addresses[0], 64 * MIB)
        # The generated types are those of blocking stubs.
        self.generation: Any = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.control: Any = control_pb2_grpc.ControlServiceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)
        scheduler: Any = scheduler_pb2_grpc.SchedulerServiceStub(self.channel)
        self.attach = scheduler.Attach

    async def status(self, name: str = "") -> int:
        answer = await self.health.Check(health_pb2.HealthCheckRequest(service=name))
        return int(answer.status)

    def stream(self, text: str) -> Any:
        return self.generation.Generate(generation_pb2.GenerateRequest(text=text))

    async def once(self, text: str, **how: Any) -> str:
        request = generation_pb2.GenerateOnceRequest(request=generation_pb2.GenerateRequest(text=text))
        answer = await self.generation.GenerateOnce(request, **how)
        return str(answer.choices[0].content.text)

    async def refusal(self, text: str, **how: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.once(text, **how)
        return caught.value


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Running]:
    host, echo = build(EchoSettings(**settings), install_signals=False)
    host.set_ready(True)
    task = asyncio.create_task(host.run())
    await asyncio.wait_for(host.started.wait(), 10)
    service = Running(host, echo, task)
    try:
        yield service
    finally:
        await service.channel.close()
        host.request_stop(0.0)
        await asyncio.wait_for(service.task, 10)


async def eventually(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)


async def test_health_follows_readiness_and_liveness_does_not() -> None:
    async with running() as service:
        service.host.set_ready(False, "no worker")
        await eventually(lambda: service.host.state == "degraded")
        watch = service.health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        seen = [(await watch.read()).status]
        await asyncio.sleep(0.05)
        for name in NAMES:
            assert await service.status(name) == NOT_SERVING
        assert await service.status("liveness") == SERVING
        service.host.set_ready(True)
        while seen[-1] != SERVING:
            seen.append((await watch.read()).status)
        watch.cancel()
        for name in NAMES:
            assert await service.status(name) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.status("nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_liveness_is_the_loops_progress() -> None:
    async with running() as service:
        beat = service.host.heartbeat("engine", limit_s=0.2)
        beat.beat()
        await asyncio.sleep(1.5)  # the tick that looks is a second
        assert await service.status("liveness") == NOT_SERVING
        assert await service.status() == SERVING
        beat.rest()
        await asyncio.sleep(1.2)
        assert await service.status("liveness") == SERVING


async def test_drain_finishes_streams_and_refuses_the_rest() -> None:
    async with running() as service:
        streams = [service.stream("count 6 0.1") for _ in range(10)]
        attached = service.attach()
        await attached.write(scheduler_pb2.AttachRequest())
        await attached.read()
        readers = [aiter(stream) for stream in streams]
        first = [await anext(reader) for reader in readers]
        assert all(answer.delta.text == "0" for answer in first)
        started = time.monotonic()
        service.host.request_stop()
        assert service.host.draining
        await eventually(lambda: service.host._book.draining)
        for name in NAMES:
            assert await service.status(name) == NOT_SERVING
        assert await service.status("liveness") == SERVING
        error = await service.refusal("late")
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert RequestError.from_rpc(error).retry_after_s == 1.0
        info = await service.control.GetServerInfo(control_pb2.GetServerInfoRequest())
        assert info.services[0].state == "draining"
        for stream, reader in zip(streams, readers, strict=True):
            rest = [answer.delta.text async for answer in reader]
            assert rest == ["1", "2", "3", "4", "5"]
            assert await stream.code() is grpc.StatusCode.OK
        assert await asyncio.wait_for(service.task, 5) == 0
        # The neighbour's stream, which never ends by itself, did not hold the drain open.
        assert time.monotonic() - started < 3
        assert service.host.drained.is_set()
        assert await attached.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


async def test_when_the_grace_is_over_the_rest_is_cancelled() -> None:
    async with running(drain_grace_s=0.3) as service:
        stream = service.stream("hang")
        await stream.read()
        started = time.monotonic()
        service.host.request_stop()
        assert await asyncio.wait_for(service.task, 5) == 0
        assert 0.25 < time.monotonic() - started < 2
        assert await stream.code() is grpc.StatusCode.CANCELLED
        assert await stream.details() == "the service stopped before the call was done"
        assert service.echo.ended == ["cancelled", "hang"]
        assert not service.host.drained.is_set()


async def test_a_later_stop_may_shorten_the_grace() -> None:
    async with running(drain_grace_s=60) as service:
        stream = service.stream("hang")
        await stream.read()
        service.host.request_stop()
        await asyncio.sleep(0.1)
        service.host.request_stop(0.1)
        assert await asyncio.wait_for(service.task, 5) == 0


async def test_drain_by_call() -> None:
    async with running() as service:
        reader = aiter(service.stream("count 3 0.1"))
        await anext(reader)
        request = control_pb2.DrainRequest()
        request.grace.FromMilliseconds(-1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await service.control.Drain(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert RequestError.from_rpc(caught.value).field == "grace"
        assert not service.host.draining
        answer = await service.control.Drain(control_pb2.DrainRequest())
        assert answer.running == 1
        assert len([answer async for answer in reader]) == 2
        assert await asyncio.wait_for(service.task, 5) == 0


async def test_a_failure_ends_the_service_with_a_bad_code() -> None:
    async with running() as service:
        stream = service.stream("hang")
        await stream.read()
        service.host.fail("the device is gone")
        assert await asyncio.wait_for(service.task, 5) == 1


async def test_cancelling_run_stops_the_server() -> None:
    async with running() as service:
        service.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service.task
        assert await error_code(service) is grpc.StatusCode.UNAVAILABLE
        service.task = asyncio.create_task(asyncio.sleep(0, 0))


async def error_code(service: Running) -> grpc.StatusCode:
    return (await service.refusal("x")).code()


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


async def test_a_service_says_who_it_is() -> None:
    async with running() as service:
        info = (await service.control.GetServerInfo(control_pb2.GetServerInfoRequest())).services[0]
        assert (info.service, info.state, info.version) == ("echo", "ready", "0.1.0")
        assert info.incarnation == service.host.facts.incarnation
        assert info.settings["max_concurrent_rpcs"] == "16384"
        assert {"python", "grpcio", "protobuf", "numpy"} <= set(info.libraries)
        assert 10 * MIB < info.resident_bytes <= info.peak_resident_bytes * 1.05


async def test_unix_sockets_are_private_and_stale_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "echo.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    async with running(listen=(f"unix:{path}",)) as service:
        assert await service.once("over unix") == "x" * 9
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        second, _ = build(EchoSettings(listen=(f"unix:{path}",)), install_signals=False)
        assert await second.run() == 1
        assert await service.once("unharmed") == "x" * 8
    assert not path.exists()


@pytest.mark.parametrize("obstacle", ["file", "no directory", "port", "metrics port"])
async def test_a_start_that_cannot_be_says_why(
    obstacle: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("precious")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings, said = {
            "file": ({"listen": f"unix:{tmp_path}/file"}, "a file that is no socket is there"),
            "no directory": ({"listen": f"unix:{tmp_path}/no/x.sock"}, "there is no directory"),
            "port": ({"listen": f"127.0.0.1:{port}"}, f"127.0.0.1:{port}: address already in use"),
            "metrics port": ({"metrics_port": port}, f"127.0.0.1:{port}: address already in use"),
        }[obstacle]
        host, _ = build(EchoSettings.model_validate(settings), install_signals=False)
        with caplog.at_level(logging.ERROR):
            assert await asyncio.wait_for(host.run(), 5) == 1
    assert said in str(caplog.records[-1].__dict__["hundredfold_values"]["reason"])
    assert (tmp_path / "file").read_text() == "precious"


async def test_a_stop_before_the_start_ends_it_at_once() -> None:
    host, _ = build(EchoSettings(), install_signals=False)
    host.request_stop()
    assert await asyncio.wait_for(host.run(), 5) == 0


def test_the_host_runs_on_another_thread_and_is_stopped_from_this_one() -> None:
    codes: list[int] = []
    hosts: list[ServiceHost] = []
    made = threading.Event()

    def serve() -> None:
        async def main() -> int:
            host, _ = build(EchoSettings(), install_signals=False)
            hosts.append(host)
            made.set()
            return await host.run()

        codes.append(asyncio.run(main()))

    thread = threading.Thread(target=serve)
    thread.start()
    assert made.wait(5)
    host = hosts[0]
    deadline = time.monotonic() + 5
    while not host.started.is_set():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    host.set_ready(True)
    with grpc.insecure_channel(host.addresses[0]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while stub.Check(health_pb2.HealthCheckRequest()).status != SERVING:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        host.request_stop()
        thread.join(5)
    assert codes == [0]
