"""The host's life over real gRPC: health, drain, addresses, threads."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.internal.v1 import scheduler_pb2
from hundredfold.rpc import RequestError, ServiceHost
from hundredfold.v1 import control_pb2
from support.echo_host import MIB, NAMES, NOT_SERVING, SERVING, Running, eventually, running
from support.echo_service import EchoSettings, build
from support.pace import in_time


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


async def test_a_service_is_starting_until_it_was_ready_once() -> None:
    host, _ = build(EchoSettings(), install_signals=False)
    states = [host.state]
    for ready, reason in ((False, "loading the model"), (True, ""), (False, "no worker")):
        host.set_ready(ready, reason)
        states.append(host.state)
    host.request_stop()
    assert [*states, host.state] == ["starting", "starting", "ready", "degraded", "draining"]


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
        assert await asyncio.wait_for(service.task, 30) == 0
        # The neighbour's stream, which never ends by itself, did not hold the drain open.
        in_time(time.monotonic() - started, 3)
        assert service.host.drained.is_set()
        assert await attached.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


async def test_when_the_grace_is_over_the_rest_is_cancelled() -> None:
    async with running(drain_grace_s=0.3) as service:
        stream = service.stream("hang")
        await stream.read()
        started = time.monotonic()
        service.host.request_stop()
        assert await asyncio.wait_for(service.task, 30) == 0
        assert time.monotonic() - started > 0.25
        in_time(time.monotonic() - started, 2)
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await stream.read()
        error = RequestError.from_rpc(cut.value)
        # What the client library resumes; CANCELLED would be an abort.
        assert error.code is grpc.StatusCode.UNAVAILABLE
        assert error.message == "the service stopped before the call was done"
        assert error.retry_after_s == 1.0
        assert service.echo.ended == ["cancelled", "hang"]
        assert not service.host.drained.is_set()


async def test_a_later_stop_may_shorten_the_grace() -> None:
    async with running(drain_grace_s=60) as service:
        stream = service.stream("hang")
        await stream.read()
        service.host.request_stop()
        await asyncio.sleep(0.1)
        service.host.request_stop(0.1)
        assert await asyncio.wait_for(service.task, 30) == 0


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
        assert await asyncio.wait_for(service.task, 30) == 0


async def test_a_failure_ends_the_service_with_a_bad_code() -> None:
    async with running() as service:
        stream = service.stream("hang")
        await stream.read()
        service.host.fail("the device is gone")
        assert await asyncio.wait_for(service.task, 30) == 1


async def test_cancelling_run_stops_the_server() -> None:
    async with running() as service:
        service.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await service.task
        assert await error_code(service) is grpc.StatusCode.UNAVAILABLE
        service.task = asyncio.create_task(asyncio.sleep(0, 0))


async def error_code(service: Running) -> grpc.StatusCode:
    return (await service.refusal("x")).code()


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
            assert await asyncio.wait_for(host.run(), 30) == 1
    assert said in str(caplog.records[-1].__dict__["hundredfold_values"]["reason"])
    assert (tmp_path / "file").read_text() == "precious"


async def test_a_stop_before_the_start_ends_it_at_once() -> None:
    host, _ = build(EchoSettings(), install_signals=False)
    host.request_stop()
    assert await asyncio.wait_for(host.run(), 30) == 0


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
    assert made.wait(30)
    host = hosts[0]
    deadline = time.monotonic() + 30
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
