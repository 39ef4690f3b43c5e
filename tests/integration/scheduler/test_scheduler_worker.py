"""The way to the worker: late, wrong, hung, killed and back; requests outlive all of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hundredfold_scheduler import worker_link
from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.service import SchedulerService
from hundredfold_scheduler.settings import SchedulerSettings
from support.eventually import eventually
from support.fake_worker import Script, expected_output
from support.grpc_worker import GrpcWorker
from support.replica import Replica
from support.scheduler_stack import SchedulerStack, scheduler_stack


def prompt(seed: int, length: int = 30) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


def right(ids: list[int], max_tokens: int) -> list[int]:
    return expected_output(ids, max_tokens, Script(), 1000)


def reason(stack: SchedulerStack) -> str:
    return stack.service.host._reason


async def test_requests_wait_for_a_worker_that_comes_later() -> None:
    """Start in any order: replica first, requests queued, then the worker; it loads for a while."""
    async with scheduler_stack(GrpcWorker(ready=False), start_worker=False) as stack:
        replica = await stack.replica()
        assert (replica.welcomes[0].max_model_len, replica.welcomes[0].worker_ready) == (0, False)
        told = [await replica.submit(i, prompt(i), 8) for i in range(5)]
        await eventually(lambda: len(stack.service.core.state.requests) == 5)
        assert stack.service.host.state != "ready"
        await stack.worker.start()
        await eventually(lambda: "loads its model" in reason(stack))
        stack.worker.ready = True
        for i, answer in enumerate(told):
            await answer.wait()
            assert answer.ids == right(prompt(i), 8)
        assert stack.service.host.state == "ready"
        assert replica.welcomes[-1].worker_ready
        assert replica.welcomes[-1].max_model_len == 1024
        await replica.close()


@pytest.mark.parametrize("plans_in_flight", [1, 2])
async def test_a_worker_is_killed_five_times(plans_in_flight: int) -> None:
    """Item 124: each time block tables are dropped, and the first requests after are correct."""
    worker = GrpcWorker(step_s=0.002)
    async with scheduler_stack(worker, max_plans_in_flight=plans_in_flight) as stack:
        replica = await stack.replica()
        for life in range(5):
            told = [await replica.submit(100 * life + i, prompt(100 * life + i), 40) for i in range(20)]
            await told[0].wait_ids(5)
            await worker.stop()
            await eventually(lambda: not stack.service.engine.worker_ready)
            assert stack.service.core.load().total_blocks == 0
            await worker.start()
            for i, answer in enumerate(told):
                await answer.wait(20)
                assert answer.ids == right(prompt(100 * life + i), 40)
        await stack.wait_idle()
        assert worker.connections == 6
        assert stack.service.core.state.totals.worker_losses == 5
        await replica.close()


async def test_the_request_that_kills_workers_ends_and_the_others_live() -> None:
    """Running at two deaths: replayed alone; at the third: INTERNAL."""
    worker = GrpcWorker(step_s=0.002)
    deadly = prompt(3)

    def crashes(plan: object) -> bool:
        held = worker.worker.held if worker.worker is not None else {}
        new = {n.slot: n for n in plan.new_sequences}  # type: ignore[attr-defined]
        for slot in plan.slots:  # type: ignore[attr-defined]
            sequence = new.get(slot) or (held[slot].new if slot in held else None)
            if sequence is not None and list(sequence.prompt) == deadly:
                return True
        return False

    worker.crashes = crashes
    async with scheduler_stack(worker) as stack:
        replica = await stack.replica()
        told = [await replica.submit(i, prompt(i), 10) for i in range(6)]
        for _ in range(3):
            await eventually(lambda: worker._server is None)
            await worker.start()
        for i, answer in enumerate(told):
            await answer.wait(20)
            if i == 3:
                assert answer.failure is not None
                assert answer.failure.code == Code.INTERNAL
            else:
                assert answer.ids == right(prompt(i), 10)
        await replica.close()


async def test_a_hung_worker_is_given_up() -> None:
    """A worker that answers no step for ``step_timeout_s`` is as good as dead."""
    worker = GrpcWorker()
    hung = asyncio.Event()

    def hangs(plan: object) -> bool:
        if worker.connections == 1 and len(worker.plans) >= 5:
            hung.set()
            return True
        return False

    worker.hangs = hangs
    async with scheduler_stack(worker, step_timeout_s=0.3) as stack:
        replica = await stack.replica()
        told = [await replica.submit(i, prompt(i), 20) for i in range(3)]
        await hung.wait()
        for i, answer in enumerate(told):
            await answer.wait()
            assert answer.ids == right(prompt(i), 20)
        assert worker.connections == 2
        await replica.close()


async def test_slow_steps_are_no_hang() -> None:
    """Two plans are in flight and each step takes most of the timeout: the time counts from one result to the
    next.
    """
    async with scheduler_stack(GrpcWorker(step_s=0.25), step_timeout_s=0.4) as stack:
        replica = await stack.replica()
        told = await replica.submit(0, prompt(0), 6)
        await told.wait()
        assert told.ids == right(prompt(0), 6)
        assert stack.worker.connections == 1
        await replica.close()


@pytest.mark.parametrize(
    ("worker", "settings", "named"),
    [
        (GrpcWorker(protocol_version=7), {}, "protocol 7"),
        (GrpcWorker(block_size=32), {"block_size": 16}, "block_size is 32, the setting says 16"),
        (GrpcWorker(num_blocks=0), {}, "num_blocks = 0"),
    ],
)
async def test_a_worker_that_does_not_fit_is_refused(
    worker: GrpcWorker, settings: dict[str, object], named: str
) -> None:
    async with scheduler_stack(worker, start_worker=False, **settings) as stack:
        await worker.start()
        await eventually(lambda: named in reason(stack))
        assert not stack.service.engine.worker_ready
        assert worker.connections == 0


async def test_a_worker_of_another_model_is_refused_while_replicas_are_here() -> None:
    """Replicas read one model's ids; a worker of another one would answer them with nonsense."""
    worker = GrpcWorker()
    async with scheduler_stack(worker) as stack:
        replica = await stack.replica()
        await worker.stop()
        worker.fingerprint = "0" * 64
        await worker.start()
        await eventually(lambda: "not ffff" in stack.service.workers.posts[worker.address].reason)
        told = await replica.submit(0, prompt(0), 4)
        await worker.stop()
        worker.fingerprint = "f" * 64
        await worker.start()
        await told.wait()
        assert told.ids == right(prompt(0), 4)
        await replica.close()
        await worker.stop()
        worker.fingerprint = "0" * 64
        await worker.start()
        await stack.wait_worker()
        other = await Replica.attach(stack.address, "other", fingerprint="0" * 64)
        await (await other.submit(0, prompt(0), 4)).wait()
        await other.close()


async def test_a_worker_that_says_what_cannot_be_true_is_left() -> None:
    worker = GrpcWorker()
    async with scheduler_stack(worker) as stack:
        replica = await stack.replica()
        lying = await replica.submit(0, prompt(0), 400)
        await lying.wait_ids(3)
        assert worker.worker is not None
        real = worker.worker.step

        def lie(plan: object) -> object:
            result = real(plan)  # type: ignore[arg-type]
            result.step += 5
            return result

        worker.worker.__class__ = type(
            "Liar", (type(worker.worker),), {"__slots__": (), "step": staticmethod(lie)}
        )
        await lying.wait(20)
        assert lying.ids == right(prompt(0), 400)
        assert worker.connections == 2
        await replica.close()


async def test_results_that_come_late_are_pipelined() -> None:
    """With a slow way back, two plans in flight keep the worker busy: its idle time is not the round
    trip's.
    """
    times = []
    for plans_in_flight in (1, 2):
        worker = GrpcWorker(step_s=0.04, delivery_s=0.04)
        async with scheduler_stack(worker, max_plans_in_flight=plans_in_flight) as stack:
            replica = await stack.replica()
            await (await replica.submit(0, prompt(0), 2)).wait()
            told = await replica.submit(1, prompt(1), 20)
            begin = asyncio.get_running_loop().time()
            await told.wait(20)
            times.append(asyncio.get_running_loop().time() - begin)
            assert told.ids == right(prompt(1), 20)
            await replica.close()
    assert times[1] < 0.8 * times[0]


async def test_a_second_scheduler_waits_for_the_first_to_go() -> None:
    """One scheduler at a time: the second says why it is not ready, and takes over when the worker is
    free.
    """
    worker = GrpcWorker()
    async with scheduler_stack(worker) as first:
        second = SchedulerService(SchedulerSettings(listen=("127.0.0.1:0",), worker=(worker.address,)))
        running = asyncio.create_task(second.run())
        try:
            await eventually(lambda: "another scheduler is here" in second.host._reason)
            replica = await first.replica()
            assert (await (await replica.submit(0, prompt(0), 5)).wait()).ids == right(prompt(0), 5)
            await replica.close()
            first.service.host.request_stop(grace_s=0.0)
            await eventually(lambda: second.engine.worker_ready)
        finally:
            second.host.request_stop(grace_s=0.0)
            await running


async def test_a_worker_that_is_awaited_is_no_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services that start together look for each other for a while; one that stays away is warned of."""
    monkeypatch.setattr(worker_link, "_START_S", 1.0)
    with caplog.at_level(logging.INFO):
        async with scheduler_stack(start_worker=False):

            def levels() -> list[int]:
                return [record.levelno for record in caplog.records if record.getMessage() == "no worker"]

            await eventually(levels)
            assert levels()[0] == logging.INFO
            await eventually(lambda: logging.WARNING in levels())
            assert levels() == sorted(levels())
