"""Replicas on real streams: requests, cancels, stop strings, handshakes, and readers that fall behind."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2
from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.failures import Code
from support.eventually import eventually
from support.fake_worker import EOS, Script, expected_beams, expected_output
from support.grpc_worker import GrpcWorker
from support.pace import at_most
from support.replica import Replica
from support.scheduler_stack import scheduler_stack

FINGERPRINT = "f" * 64


def prompt(seed: int, length: int = 30) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


def right(ids: list[int], max_tokens: int, script: Script = Script()) -> list[int]:  # noqa: B008
    return expected_output(ids, max_tokens, script, 1000)


@pytest.mark.parametrize("plans_in_flight", [1, 2])
async def test_many_requests_of_two_replicas(plans_in_flight: int) -> None:
    async with scheduler_stack(max_plans_in_flight=plans_in_flight, max_num_batched_tokens=64) as stack:
        replicas = [await stack.replica(name) for name in ("a", "b")]
        told = {}
        for i in range(60):
            script = Script(stop_at=5) if i % 3 == 0 else Script()
            told[i] = await replicas[i % 2].submit(i, prompt(i, 5 + i), 12, script)
        for i, answer in told.items():
            await answer.wait()
            script = Script(stop_at=5) if i % 3 == 0 else Script()
            assert answer.ids == right(prompt(i, 5 + i), 12, script)
            assert answer.finished is not None
            if script.stop_at:
                assert answer.finished.reason == sequence_pb2.END_REASON_STOP
                assert answer.finished.stop_token_id == EOS
            else:
                assert answer.finished.reason == sequence_pb2.END_REASON_LENGTH
        await stack.wait_idle()
        for replica in replicas:
            await replica.close()


async def test_the_welcome_says_what_fits() -> None:
    async with scheduler_stack(GrpcWorker(num_blocks=20), max_model_len=300) as stack:
        replica = await stack.replica()
        (welcome,) = replica.welcomes
        assert welcome.incarnation == stack.service.host.facts.incarnation
        assert (welcome.max_model_len, welcome.vocab_size) == (300, 1000)
        assert welcome.max_cache_tokens == 320
        assert welcome.worker_ready
        await replica.close()


async def test_the_account_of_a_choice() -> None:
    async with scheduler_stack(GrpcWorker(step_s=0.02)) as stack:
        replica = await stack.replica()
        await (await replica.submit(0, prompt(1, 40), 4)).wait()
        again = await (await replica.submit(1, prompt(1, 40), 4, age_us=500_000)).wait()
        assert again.finished is not None
        account = again.finished.account
        assert account.cached_tokens == 32
        assert 500_000 <= account.queue_us < 5_000_000
        assert account.prefill_us >= 10_000
        assert account.decode_us >= 30_000
        assert account.preemptions == 0
        await replica.close()


@pytest.mark.parametrize(
    ("name", "fingerprint", "protocol_version", "detail"),
    [
        ("r", "e" * 64, 1, "served is ffffffff"),
        ("r", FINGERPRINT, 2, "protocol 2"),
        ("", FINGERPRINT, 1, "name has 0 characters"),
        ("n" * 300, FINGERPRINT, 1, "name has 300 characters"),
    ],
)
async def test_a_replica_that_does_not_fit_is_refused(
    name: str, fingerprint: str, protocol_version: int, detail: str
) -> None:
    async with scheduler_stack() as stack:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Replica.attach(stack.address, name, fingerprint, protocol_version)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert detail in str(refused.value.details())
        assert not stack.service.core.state.attachments


async def test_nonsense_on_the_stream_ends_it() -> None:
    async with scheduler_stack() as stack:
        replica = await stack.replica()
        await replica.submit(0, prompt(0), 50)
        await replica.submit(0, prompt(1), 50, request_id="another")
        assert await replica.ended_with() is grpc.StatusCode.INVALID_ARGUMENT
        await replica.close()
        second = await stack.replica()
        await second.send(scheduler_pb2.AttachRequest())
        assert await second.ended_with() is grpc.StatusCode.INVALID_ARGUMENT
        await second.close()
        await stack.wait_idle()


async def test_refusals_come_as_failed_requests() -> None:
    """Items 11, 27: the stream stays, each refused request is told its status, field and numbers."""
    async with scheduler_stack(GrpcWorker(step_s=0.01)) as stack:
        replica = await stack.replica()
        first = await replica.submit(0, prompt(0), 30)
        same = await replica.submit(1, prompt(1), 5, request_id="request-0")
        long = await replica.submit(2, prompt(2, 1024), 5)
        wide = await replica.submit(3, prompt(3), 5, beam_width=17)
        for told, code, field in (
            (same, Code.ALREADY_EXISTS, "request_id"),
            (long, Code.INVALID_ARGUMENT, "prompt"),
            (wide, Code.INVALID_ARGUMENT, "sampling.beam_width"),
        ):
            with at_most(1):
                await told.wait()
            assert told.failure is not None
            assert (told.failure.code, told.failure.field) == (code, field)
        assert "1024" in long.failure.message  # type: ignore[union-attr]
        await first.wait()
        assert first.ids == right(prompt(0), 30)
        await replica.close()


async def test_beams_through_both_streams() -> None:
    """Candidates come up, branches and copies go down; the best beam is told at the end with its score."""
    async with scheduler_stack(GrpcWorker()) as stack:
        replica = await stack.replica()
        told = await replica.submit(0, prompt(0), 30, beam_width=4, length_penalty=0.5)
        await told.wait()
        best = expected_beams(prompt(0), 30, BeamTerms(4, 0.5, early_stopping=False), 1000)[0]
        assert told.ids == list(best.output)
        assert told.finished is not None
        assert told.finished.beam_score == best.score
        await replica.close()
        await stack.wait_idle()


async def test_a_full_queue_answers_at_once_with_a_hint() -> None:
    """Item 126: limit 10, one seat, 50 sent: at least 39 RESOURCE_EXHAUSTED, fast, each with a hint."""
    worker = GrpcWorker(step_s=0.15)
    async with scheduler_stack(worker, max_num_seqs=1, max_queued_requests=10) as stack:
        replica = await stack.replica()
        told = [await replica.submit(i, prompt(i), 2) for i in range(50)]
        with at_most(1):
            await eventually(lambda: sum(t.failure is not None for t in told) >= 39)
        refused = [t.failure for t in told if t.failure is not None]
        assert {f.code for f in refused} == {Code.RESOURCE_EXHAUSTED}
        assert all(f.retry_after_ms >= 100 for f in refused)
        assert (await stack.load()).totals["rejected"] == len(refused)
        for t in told:
            await t.wait()
        await replica.close()


async def test_a_stream_that_ends_drops_its_requests() -> None:
    """Items 17, 20: the replica is gone, and in the next plan so is its work; the other replica's goes on."""
    async with scheduler_stack(GrpcWorker(step_s=0.02, max_num_seqs=4)) as stack:
        gone, stays = await stack.replica("gone"), await stack.replica("stays")
        lost = [await gone.submit(i, prompt(i), 500) for i in range(6)]
        kept = await stays.submit(100, prompt(100), 20)
        await lost[0].wait_ids(2)
        await gone.close()
        with at_most(1):
            await eventually(lambda: len(stack.service.core.state.requests) == 1)
        await kept.wait()
        assert kept.ids == right(prompt(100), 20)
        with at_most(1):
            await stack.wait_idle()
        assert (await stack.load()).totals["cancelled"] == 6
        await stays.close()


async def test_cancel_while_a_slow_step_runs() -> None:
    """Item 17: queued, prefilling and decoding requests are cancelled in a 0.3 s step; blocks are back at
    once.
    """
    worker = GrpcWorker(step_s=0.3, max_num_seqs=2, max_num_batched_tokens=32)
    async with scheduler_stack(worker) as stack:
        replica = await stack.replica()
        decoding = await replica.submit(0, prompt(0, 8), 500)
        await decoding.wait_ids(1)
        await replica.submit(1, prompt(1, 200), 5)
        await replica.submit(2, prompt(2, 8), 5)
        await asyncio.sleep(0.35)
        for stream_id in (0, 1, 2, 2, 99):
            await replica.cancel(stream_id)
        with at_most(0.5):
            await eventually(lambda: stack.service.core.load().used_blocks == 0)
        await stack.wait_idle()
        after = await replica.submit(3, prompt(3, 8), 2)
        await after.wait()
        assert after.ids == right(prompt(3, 8), 2)
        await replica.close()


async def test_many_streams_drop_at_one_instant() -> None:
    """Item 21: a saturated cache, every socket dropped at once, several rounds; the next request is right."""
    worker = GrpcWorker(num_blocks=40, max_num_seqs=32, step_s=0.002)
    async with scheduler_stack(worker) as stack:
        for _ in range(5):
            replicas = [await stack.replica(f"r{i}") for i in range(12)]
            told = [
                await r.submit(i, prompt(i), 100, request_id=f"{j}-{i}")
                for j, r in enumerate(replicas)
                for i in range(5)
            ]
            await told[0].wait_ids(1)
            await asyncio.gather(*(replica.close() for replica in replicas))
            await stack.wait_idle()
        survivor = await stack.replica()
        answer = await (await survivor.submit(0, prompt(0), 20)).wait()
        assert answer.ids == right(prompt(0), 20)
        await survivor.close()


async def test_a_newer_stream_of_a_replica_takes_over() -> None:
    """The tokenizer came back before its old stream was noticed dead: requests are submitted anew, nothing
    repeats.
    """
    async with scheduler_stack(GrpcWorker(step_s=0.01)) as stack:
        old = await stack.replica()
        told = await old.submit(0, prompt(0), 60)
        await told.wait_ids(5)
        new = await stack.replica()
        have = list(told.ids)
        again = await new.submit(0, prompt(0), 60, prior=[scheduler_pb2.PriorOutput(index=0, token_ids=have)])
        assert await old.ended_with() is grpc.StatusCode.ABORTED
        await again.wait()
        assert again.ids == right(prompt(0), 60)
        await old.close()
        assert "replica" in stack.service.core.state.attachments
        await new.close()


async def test_a_stop_string_in_the_tokenizer_ends_the_choice() -> None:
    async with scheduler_stack(GrpcWorker(step_s=0.01)) as stack:
        replica = await stack.replica()
        told = await replica.submit(0, prompt(0), 500)
        await told.wait_ids(6)
        await replica.finish(0, 4)
        await replica.finish(0, 4)
        await replica.finish(77, 0)
        with at_most(1):
            await told.wait()
        assert told.finished is not None
        assert told.finished.reason == sequence_pb2.END_REASON_STOP
        assert not told.finished.HasField("stop_token_id")
        assert told.finished.account.decode_us > 0
        with at_most(1):
            await stack.wait_idle()
        await replica.close()


async def test_a_slow_reader_gets_merged_messages_and_stops_nobody() -> None:
    """The step loop never waits for a reader: what piles up comes merged, in order and complete."""
    async with scheduler_stack(
        GrpcWorker(max_num_seqs=80, max_model_len=4096, num_blocks=8192, remembers=False)
    ) as stack:
        slow, quick = await stack.replica("slow"), await stack.replica("quick")
        slow.reading.clear()
        behind = [await slow.submit(i, prompt(i), 400) for i in range(64)]
        ahead = await quick.submit(100, prompt(100), 400)
        await ahead.wait(60)
        assert ahead.ids == right(prompt(100), 400)
        await eventually(lambda: not stack.service.core.state.requests, 60)
        slow.reading.set()
        for i, told in enumerate(behind):
            await told.wait(20)
            assert told.ids == right(prompt(i), 400)
        assert slow.messages < 300
        await slow.close()
        await quick.close()


async def test_what_stays_unread_is_bounded() -> None:
    """Past the cap the largest stream ends RESOURCE_EXHAUSTED; the smaller ones are complete."""
    worker = GrpcWorker(max_num_seqs=64, max_model_len=8192, num_blocks=16384, remembers=False)
    async with scheduler_stack(worker, max_unread_bytes=64 * 1024, run_ahead_ms=0.0) as stack:
        slow = await stack.replica()
        slow.reading.clear()
        large = [await slow.submit(i, prompt(i), 900) for i in range(48)]
        small = [await slow.submit(100 + i, prompt(i), 30) for i in range(4)]
        await eventually(lambda: stack.service.core.state.totals.failed > 0, 60)
        attachment = stack.service.core.state.attachments["replica"]
        assert attachment.outbox.nbytes < 2 * 64 * 1024
        slow.reading.set()
        for i, told in enumerate(small):
            await told.wait(30)
            assert told.ids == right(prompt(i), 30)
        for told in large:
            await told.wait(60)
        failed = [told.failure for told in large if told.failure is not None]
        assert failed
        assert {failure.code for failure in failed} == {Code.RESOURCE_EXHAUSTED}
        await slow.close()
