"""The service around it all: health, control, drain, deadlines, idleness and memory, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.internal.v1 import scheduler_pb2
from hundredfold.rpc import open_channel
from hundredfold.v1 import control_pb2, control_pb2_grpc
from hundredfold_scheduler.core.failures import Code
from support.eventually import eventually
from support.fake_worker import Script, expected_output
from support.grpc_worker import GrpcWorker
from support.pace import TooSlow, in_time
from support.scheduler_process import SchedulerProcess
from support.scheduler_stack import scheduler_stack


def prompt(seed: int, length: int = 30) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


def right(ids: list[int], max_tokens: int) -> list[int]:
    return expected_output(ids, max_tokens, Script(), 1000)


async def readiness(address: str) -> int:
    async with open_channel(address, 1 << 20) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        reply = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=30)
        return int(reply.status)


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_readiness_outlives_a_worker_by_the_grace() -> None:
    worker = GrpcWorker()
    async with scheduler_stack(worker, recovery_grace_s=0.6) as stack:
        await eventually(lambda: stack.service.host.state == "ready")
        assert await readiness(stack.address) == SERVING
        await worker.stop()
        await eventually(lambda: not stack.service.engine.worker_ready)
        assert await readiness(stack.address) == SERVING
        await eventually(lambda: stack.service.host.state != "ready")
        await asyncio.sleep(0.1)
        assert await readiness(stack.address) == NOT_SERVING
        replica = await stack.replica()
        told = await replica.submit(0, prompt(0), 5)
        await worker.start()
        await told.wait()
        await eventually(lambda: stack.service.host.state == "ready")
        await replica.close()


@pytest.mark.alone
async def test_deadlines_hold_everywhere() -> None:
    """Item 125: queued, prefilling, decoding, and with no worker at all; blocks are free at once."""
    worker = GrpcWorker(step_s=0.05, max_num_seqs=2, max_num_batched_tokens=16)
    async with scheduler_stack(worker) as stack:
        replica = await stack.replica()
        decoding = await replica.submit(0, prompt(0, 8), 900, deadline_ms=400)
        prefilling = await replica.submit(1, prompt(1, 800), 5, deadline_ms=400)
        queued = await replica.submit(2, prompt(2, 8), 5, deadline_ms=300)
        begin = time.monotonic()
        for told in (decoding, prefilling, queued):
            await told.wait()
            assert told.failure is not None
            assert told.failure.code == Code.DEADLINE_EXCEEDED
        assert time.monotonic() - begin >= 0.3
        in_time(time.monotonic() - begin, 1.5)
        if not decoding.ids:
            raise TooSlow("nothing was decoded before the deadline")
        assert decoding.ids == right(prompt(0, 8), 900)[: len(decoding.ids)]
        assert stack.service.core.load().used_blocks == 0
        assert all(list(new.prompt) != prompt(2, 8) for plan in worker.plans for new in plan.new_sequences)
        await worker.stop()
        alone = await replica.submit(3, prompt(3), 5, deadline_ms=200)
        await alone.wait()
        assert alone.failure is not None
        assert alone.failure.code == Code.DEADLINE_EXCEEDED
        await replica.close()


async def test_a_drain_finishes_what_runs_and_refuses_the_rest() -> None:
    """Items 28, 127: new ones UNAVAILABLE, running and queued ones complete, then the stream ends, never as
    success.
    """
    worker = GrpcWorker(step_s=0.01, max_num_seqs=2)
    async with scheduler_stack(worker) as stack:
        replica = await stack.replica()
        told = [await replica.submit(i, prompt(i), 25) for i in range(4)]
        await told[0].wait_ids(2)
        async with open_channel(stack.address, 1 << 20) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            reply = await stub.Drain(control_pb2.DrainRequest())  # type: ignore[misc]
            assert reply.running == 4
        late = await replica.submit(50, prompt(50), 5)
        await late.wait()
        assert late.failure is not None
        assert late.failure.code == Code.UNAVAILABLE
        for i, answer in enumerate(told):
            await answer.wait()
            assert answer.ids == right(prompt(i), 25)
        assert await replica.ended_with() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await replica.close()


async def test_control_tells_load_and_limits() -> None:
    async with scheduler_stack(
        GrpcWorker(step_s=0.02, max_num_seqs=2, num_blocks=50), max_model_len=500
    ) as stack:
        replica = await stack.replica()
        told = [await replica.submit(i, prompt(i), 30) for i in range(5)]
        await told[0].wait_ids(2)
        async with open_channel(stack.address, 1 << 20) as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)
            load = await stub.GetLoad(control_pb2.GetLoadRequest())  # type: ignore[misc]
            info = await stub.GetServerInfo(control_pb2.GetServerInfoRequest())  # type: ignore[misc]
        if told[0].finished:
            raise TooSlow("load was asked for when the first was done")
        assert (load.running, load.waiting, load.waiting_tokens) == (2, 3, 90)
        assert load.blocks.free + load.blocks.cached + load.blocks.used == load.blocks.total == 50
        assert load.cache_usage == load.blocks.used / 50 > 0
        assert load.totals["requests"] == 5
        own, worker = info.services
        assert (worker.service, bool(worker.address)) == ("worker", True)
        assert (own.service, own.state) == ("scheduler", "ready")
        assert (own.model.fingerprint, own.model.max_model_len) == ("f" * 64, 500)
        assert own.settings["max_num_seqs"] == "2"
        for answer in told:
            await answer.wait()
        await replica.close()


async def test_an_idle_engine_does_nothing() -> None:
    """Connected and without work: the loop does not turn, but for one check of the accounts."""
    async with scheduler_stack() as stack:
        replica = await stack.replica()
        await (await replica.submit(0, prompt(0), 5)).wait()
        await asyncio.sleep(1.3)
        turns = 0
        turn = stack.service.engine._turn

        def counting() -> None:
            nonlocal turns
            turns += 1
            turn()

        stack.service.engine._turn = counting  # type: ignore[method-assign]
        plans = len(stack.worker.plans)
        await asyncio.sleep(1.5)
        assert turns == 0
        assert len(stack.worker.plans) == plans
        assert stack.service.engine._checked
        await replica.close()


async def test_a_fault_in_the_accounts_ends_the_process() -> None:
    """The check when idle is no decoration: a leaked block stops the service with a non-zero exit code."""
    async with scheduler_stack() as stack:
        replica = await stack.replica()
        told = await replica.submit(0, prompt(0), 5)
        await told.wait()
        (worker,) = stack.service.core.state.workers.values()
        worker.cache.pool._free.pop()
        await eventually(lambda: stack.service.host._exit_code == 1)
        await replica.close()


async def test_sigterm_lets_streams_finish_and_exits_0(tmp_path: Path) -> None:
    """Item 127, as a process: readiness falls first, streams finish, exit code 0."""
    worker = GrpcWorker(step_s=0.02)
    process = SchedulerProcess(tmp_path / "log", "--worker", await worker.start())
    try:
        replica = await process.attach()
        told = [await replica.submit(i, prompt(i), 120) for i in range(10)]
        await told[0].wait_ids(3)
        process.stop()
        async with asyncio.timeout(30):
            while await readiness(process.address) != NOT_SERVING:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if any(answer.finished for answer in told):
            raise TooSlow("readiness was looked at when all was done")
        for i, answer in enumerate(told):
            await answer.wait()
            assert answer.ids == right(prompt(i), 120)
        assert await process.wait() == 0
        await replica.close()
    finally:
        process.kill()
        await worker.stop()
    assert "Traceback" not in process.log.read_text()


async def test_a_killed_scheduler_is_replaced(tmp_path: Path) -> None:
    """Item 132, and replay of the hop below: ``kill -9`` five times; the replica submits anew with what it
    has.
    """
    worker = GrpcWorker(step_s=0.005)
    address = await worker.start()
    have: list[int] = []
    for life in range(5):
        process = SchedulerProcess(tmp_path / "log", "--worker", address)
        replica = await process.attach()
        prior = [scheduler_pb2.PriorOutput(index=0, token_ids=have)] if have else []
        told = await replica.submit(0, prompt(0), 100, prior=prior)
        await told.wait_ids(len(have) + 10)
        have = list(told.ids)
        if life == 4:
            await told.wait()
            have = list(told.ids)
        process.kill()
        await replica.close()
    assert have == right(prompt(0), 100)
    assert worker.connections == 5
    await worker.stop()


async def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    """Item 128: non-zero exit code within seconds, and the cause in the log."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in (("--model", "/nowhere/at/all"), ("--block-size", "8"), ("--listen", used)):
            process = SchedulerProcess(tmp_path / "log", *flags)
            assert await process.wait(60) != 0
            assert flags[1] in process.log.read_text()


async def test_memory_is_flat_and_idle_costs_nothing(tmp_path: Path) -> None:
    """Item 23 and the idle rule, on the process: RssAnon over thousands of requests, CPU over quiet
    seconds.
    """
    worker = GrpcWorker(num_blocks=512, max_num_seqs=64, max_num_batched_tokens=2048)
    process = SchedulerProcess(tmp_path / "log", "--worker", await worker.start())
    try:
        replica = await process.attach()

        def anonymous_bytes() -> int:
            status = Path(f"/proc/{process.child.pid}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
            return int(line.split()[1]) * 1024

        async def serve(first: int, count: int) -> int:
            for start in range(first, first + count, 50):
                told = [await replica.submit(i, prompt(i % 97, 20), 1) for i in range(start, start + 50)]
                for answer in told:
                    await answer.wait()
                replica.told.clear()
            return anonymous_bytes()

        warm = await serve(0, 3000)  # what it keeps of the past is full then
        after = await serve(3000, 3000)
        assert (after - warm) / 3000 < 100, "bytes a request"
        await asyncio.sleep(1.5)
        cpu = psutil.Process(process.child.pid).cpu_times()
        await asyncio.sleep(3)
        later = psutil.Process(process.child.pid).cpu_times()
        used = (later.user + later.system) - (cpu.user + cpu.system)
        in_time(used / 3, 0.02, "a second of rest")
        await replica.close()
    finally:
        process.stop()
        await process.wait()
        await worker.stop()
