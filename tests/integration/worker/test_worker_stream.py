"""The Execute stream over real gRPC: order, plans in flight, handshake, a scheduler's end, broken plans."""

from __future__ import annotations

import asyncio
import time

import grpc
import numpy as np
import pytest
import torch

from hundredfold.internal.v1 import sequence_pb2, worker_pb2
from support.plan_client import PlanClient, params
from support.toy_model import ToyModel
from support.worker_process import RunningWorker

STOP, LENGTH = sequence_pb2.END_REASON_STOP, sequence_pb2.END_REASON_LENGTH
MIX = [
    params(),
    params(max_tokens=40),
    params(temperature=1.0, seed=2**64 - 1),
    params(temperature=0.9, top_k=12, top_p=0.8, seed=5, max_tokens=23),
    params(frequency_penalty=1.0, repetition_penalty=1.2, max_tokens=30),
    params(temperature=1.4, seed=8, stop_token_ids=[3, 4, 5, 6], min_tokens=4, max_tokens=60),
    params(bias_token_ids=[9], bias_values=[6.0], bad_words=[sequence_pb2.BadWord(token_ids=[9, 9])]),
    params(max_tokens=1),
]
PROMPTS = [np.random.default_rng(n).integers(0, 64, n).tolist() for n in (1, 16, 17, 40, 64, 5, 31, 90)]


async def outputs(worker: RunningWorker, **options: int) -> list[tuple[list[int], int, int | None]]:
    """Run the mix over a stream of its own."""
    async with PlanClient(worker.address, **options) as client:
        await client.connect()
        tracked = [client.add(i, PROMPTS[i], MIX[i]) for i in range(8)]
        await client.run()
        client.call.cancel()
        await wait_free(worker)
        return [(t.output, t.reason, t.stop_token_id) for t in tracked]


async def wait_free(worker: RunningWorker) -> None:
    """Until the worker has noticed that its scheduler is gone."""
    async with asyncio.timeout(30):
        while worker.service._servicer.session is not None or worker.started.engine.num_live:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_in_flight_and_chunks_change_nothing(start_worker) -> None:
    """One plan at a time, two, three; whole prompts, chunks: the same ids, ends and stop tokens."""
    worker = start_worker()
    want = await outputs(worker)
    assert {reason for _, reason, _ in want} == {STOP, LENGTH}
    assert [len(ids) for ids, reason, _ in want if reason == LENGTH][:2] == [16, 40]
    for in_flight in (1, 2, 3):
        for chunk in (1 << 30, 7):
            assert await outputs(worker, in_flight=in_flight, chunk=chunk) == want, (in_flight, chunk)


async def test_a_sequence_continues_on_another_stream(start_worker) -> None:
    """Replay: scheduler or worker died; what was received comes back with the prompt, seeds included."""
    want = await outputs(start_worker())
    worker = start_worker()
    async with PlanClient(worker.address, in_flight=2, chunk=13) as client:
        await client.connect()
        again = [
            client.add(7 - i, PROMPTS[i], MIX[i], ids[: len(ids) // 2]) for i, (ids, _, _) in enumerate(want)
        ]
        await client.run()
    assert [(t.output, t.reason, t.stop_token_id) for t in again] == want


async def test_worker_info(start_worker) -> None:
    worker = start_worker()
    async with PlanClient(worker.address) as client:
        welcome = await client.connect()
        info = client.info
        assert info is not None
        assert welcome.incarnation == info.incarnation == worker.service.host.facts.incarnation
        assert (info.ready, info.protocol_version, info.model_fingerprint) == (True, 1, "f" * 64)
        assert (info.max_model_len, info.vocab_size, info.block_size, info.num_blocks) == (256, 64, 16, 136)
        assert (info.bytes_per_block, info.max_num_seqs, info.max_num_batched_tokens) == (128, 8, 512)
        assert info.max_draft_tokens == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"protocol_version": 9}, "protocol_version is '9', this worker's is 1"),
        ({"incarnation": "old"}, "incarnation is 'old'"),
        ({"model_fingerprint": "00"}, "model_fingerprint is '00'"),
        ({"block_size": 64}, "block_size is '64', this worker's is 16"),
    ],
)
async def test_a_mismatch_is_refused(start_worker, change: dict[str, object], told: str) -> None:
    """Report 170."""
    worker = start_worker()
    async with PlanClient(worker.address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.connect(**change)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert told in refused.value.details()
        await client.connect()


async def test_a_second_scheduler_is_refused_and_the_first_unharmed(start_worker) -> None:
    worker = start_worker()
    async with PlanClient(worker.address) as first, PlanClient(worker.address) as second:
        await first.connect()
        tracked = first.add(0, PROMPTS[3], MIX[1])
        await first.send(first.make_plan())
        await first.receive()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await second.connect(scheduler="other")
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "another scheduler" in refused.value.details()
        await first.run()
        assert len(tracked.output) == 40
        first.call.cancel()
        await wait_free(worker)
        await second.connect(scheduler="other")


@pytest.mark.parametrize("leave", ["cancel", "half close", "channel"])
async def test_a_scheduler_that_leaves_takes_its_sequences_along(start_worker, leave: str) -> None:
    """Report 17, 22: its sequences are gone at once, plans in flight too; the next starts from nothing."""
    worker = start_worker()
    async with PlanClient(worker.address) as client:
        await client.connect()
        for slot in range(8):
            client.add(slot, PROMPTS[slot], params(max_tokens=100))
        for _ in range(3):
            await client.send(client.make_plan())
        await client.receive()
        assert worker.started.engine.num_live == 8
        if leave == "cancel":
            client.call.cancel()
        elif leave == "half close":
            await client.call.done_writing()
        else:
            await client._channel.close()
        await wait_free(worker)
    assert not worker.started.engine._table.sampling.sparse
    assert len(await outputs(worker)) == 8


async def test_results_do_not_leak_into_the_next_stream(start_worker) -> None:
    """A slow step is in progress when its scheduler goes; its result is nobody's."""
    worker = start_worker(ToyModel(tamper=lambda ids, logits: time.sleep(0.3) if len(ids) == 31 else None))
    async with PlanClient(worker.address) as client:
        await client.connect()
        client.add(0, PROMPTS[6], params())
        await client.send(client.make_plan())
        await client.send(client.make_plan())
        await asyncio.sleep(0.1)
        client.call.cancel()
        async with asyncio.timeout(30):
            while worker.service._servicer.session is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with PlanClient(worker.address) as after:
            await after.connect()
            tracked = after.add(0, PROMPTS[0], MIX[0])
            await after.run()
            assert len(tracked.output) == 16


BROKEN = {
    "step is 2, the one after 0": worker_pb2.StepPlan(step=2),
    "slots names slot 3, which holds no": worker_pb2.StepPlan(step=1, slots=[3], num_tokens=[1]),
    "slots has 4294967295, max_num_seqs is 8": worker_pb2.StepPlan(step=1, slots=[2**32 - 1], num_tokens=[1]),
    "copies.source has 999, num_blocks is 136": worker_pb2.StepPlan(
        step=1, copies=[worker_pb2.BlockCopy(source=999, destination=1)]
    ),
}


@pytest.mark.parametrize("told", BROKEN)
async def test_a_broken_plan_ends_the_stream(start_worker, told: str) -> None:
    worker = start_worker()
    async with PlanClient(worker.address) as client:
        await client.connect()
        await client.call.write(worker_pb2.ExecuteRequest(plan=BROKEN[told]))
        code, details = await client.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert told in details
        await wait_free(worker)
    assert len(await outputs(worker)) == 8


@pytest.mark.parametrize(
    "message",
    [
        worker_pb2.ExecuteRequest(),
        worker_pb2.ExecuteRequest(plan=worker_pb2.StepPlan(step=1)),
        b"\xff\xff\xff",
    ],
)
async def test_a_stream_begins_with_hello(start_worker, message: object) -> None:
    worker = start_worker()
    async with grpc.aio.insecure_channel(worker.address) as channel:
        call = channel.stream_stream("/hundredfold.internal.v1.WorkerService/Execute")(timeout=10)
        raw = message if isinstance(message, bytes) else message.SerializeToString()  # type: ignore[attr-defined]
        await call.write(raw)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)


async def test_random_payloads(start_worker) -> None:
    """Report 151: bytes of all kinds as plans; streams end, the worker lives and computes as before."""
    worker = start_worker(ToyModel(strict=False))
    want = await outputs(worker)
    rng = np.random.default_rng(0)
    async with PlanClient(worker.address) as client:
        await client.connect()
        client.add(0, PROMPTS[3], MIX[1])
        valid = worker_pb2.ExecuteRequest(plan=client.make_plan()).SerializeToString()
        hello = worker_pb2.ExecuteRequest(
            hello=worker_pb2.ExecuteHello(
                protocol_version=1,
                incarnation=client.info.incarnation,
                model_fingerprint=client.info.model_fingerprint,
                block_size=16,
            )
        ).SerializeToString()
        client.call.cancel()
    sent = 0
    async with grpc.aio.insecure_channel(worker.address) as channel:
        while sent < 2_000:
            await wait_free(worker)
            call = channel.stream_stream("/hundredfold.internal.v1.WorkerService/Execute")(timeout=20)
            await call.write(hello)
            assert await call.read() is not grpc.aio.EOF
            try:
                for _ in range(100):
                    await call.write(payload(rng, valid))
                    sent += 1
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            call.cancel()
    await wait_free(worker)
    assert await outputs(worker) == want
    assert worker.device.is_alive()


def payload(rng: np.random.Generator, valid: bytes) -> bytes:
    """Noise, an empty plan with the right number, or the valid plan with bytes changed, cut or added."""
    kind = rng.integers(0, 4)
    if kind == 0:
        return rng.bytes(int(rng.integers(0, 64)))
    data = bytearray(valid)
    if kind == 1:
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, len(data))] = rng.integers(0, 256)
    elif kind == 2:
        del data[rng.integers(0, len(data)) :]
    else:
        data += rng.bytes(int(rng.integers(1, 16)))
    return bytes(data)


async def test_one_bad_sequence_ends_alone(start_worker) -> None:
    def poison(ids: torch.Tensor, logits: torch.Tensor) -> None:
        for row, token in enumerate(ids.tolist()):
            if token == 63 and len(ids) == len(logits):
                logits[row] = torch.nan

    worker = start_worker(ToyModel(tamper=poison))
    async with PlanClient(worker.address, in_flight=2) as client:
        await client.connect()
        good = client.add(0, [1], params(bad_words=[sequence_pb2.BadWord(token_ids=[63])]))
        sick = client.add(1, [63], params())
        wrong = client.add(2, [1], params(temperature=-1.0))
        lacking = client.add(3, [1], params(grammar_id="g"))
        await client.run()
        assert len(good.output) == 16
        assert (sick.failure.code, wrong.failure.code, lacking.failure.code) == (13, 3, 12)
        assert "non-finite logits" in sick.failure.message
        assert (wrong.failure.field, lacking.failure.field) == ("temperature", "grammar_id")


async def test_a_decode_step_of_many_sequences_is_small(start_worker) -> None:
    """256 sequences: plan and result together under 10 kB."""
    worker = start_worker(max_num_seqs=256, num_kv_blocks=256 * 2)
    async with PlanClient(worker.address) as client:
        await client.connect()
        for slot in range(256):
            client.add(slot, [slot % 64], params())
        await client.send(client.make_plan())
        await client.receive()
        plan = client.make_plan()
        await client.send(plan)
        result = await client.receive()
        assert plan.ByteSize() + result.ByteSize() < 10_000
        await client.run()
