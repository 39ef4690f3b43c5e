"""The scheduler dies, comes back, comes late, is the wrong one, or talks nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.vocabulary import Vocabulary
from support.door import Answer, request
from support.fake_scheduler import FakeScheduler, Script
from support.pace import in_time
from support.running_door import read_to_end, running_door, until


def counting(submit: scheduler_pb2.Submit) -> Script:
    """Ids that tell their position, slowly."""
    return Script(ids=[259 + position % 200 for position in range(100)], delay_s=0.02)


async def test_streams_go_on_over_restarts(bpe_directory: Path) -> None:
    """DESIGN §3, replay: the scheduler is killed three times; delivered tokens never change, repeat or
    vanish.
    """
    async with running_door(bpe_directory, FakeScheduler(counting)) as door:

        async def one(number: int) -> Answer:
            answer = Answer()
            async for event in door.generation.Generate(request("hello", max_tokens=60 + number)):
                answer.take(event)
            return answer

        tasks = [asyncio.create_task(one(number)) for number in range(20)]
        for lives in range(1, 4):
            await until(lambda: len(door.scheduler.hellos) == lives)  # noqa: B023
            await asyncio.sleep(0.25)
            await door.scheduler.kill()
            await asyncio.sleep(0.1)
            await door.scheduler.start()
        answers = await asyncio.gather(*tasks)
        for number, answer in enumerate(answers):
            assert answer.token_ids == [259 + position for position in range(60 + number)]
            assert len(answer.finished) == 1
            assert answer.finished[0].usage.completion_tokens == 60 + number
        again = [submit for submit in door.scheduler.submits if submit.prior]
        assert again
        assert all(submit.prior[0].token_ids[0] == 259 for submit in again)
        seeds: dict[str, set[int]] = {}
        for submit in door.scheduler.submits:
            seeds.setdefault(submit.request_id, set()).add(submit.params.seed)
        assert all(len(found) == 1 for found in seeds.values())  # a replay keeps its seed
        assert len(door.scheduler.hellos) == 4
        assert len({hello.replica for hello in door.scheduler.hellos}) == 1


async def test_a_request_waits_for_the_scheduler(bpe_directory: Path) -> None:
    """A request that arrives while the scheduler is away is served when it is back."""
    async with running_door(bpe_directory) as door:
        await door.scheduler.kill()
        await until(lambda: not door.service.attachment.link.attached)
        waiting = asyncio.ensure_future(
            door.generation.GenerateOnce(pb.GenerateOnceRequest(request=request("hello", max_tokens=2)))
        )
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await door.scheduler.start()
        assert (await waiting).choices[0].finished.usage.completion_tokens == 2


async def test_what_was_submitted_before_is_marked(bpe_directory: Path) -> None:
    """The next scheduler is told which requests an earlier one had, those without output among them: it may
    not refuse them for want of room.
    """
    async with running_door(bpe_directory, FakeScheduler(lambda _: Script(hang_after=0))) as door:
        calls = [door.generation.Generate(request("hello", max_tokens=4)) for _ in range(3)]
        await until(lambda: len(door.scheduler.submits) == 3)
        await door.scheduler.kill()
        await until(lambda: not door.service.attachment.link.attached)
        calls.append(door.generation.Generate(request("hello", max_tokens=4)))
        await until(lambda: len(door.service.attachment) == 4)
        door.scheduler.script = lambda _: Script(ids=[259] * 4)
        await door.scheduler.start()
        answers = [await read_to_end(call) for call in calls]
        assert [len(answer.token_ids) for answer in answers] == [4] * 4
        assert [submit.accepted for submit in door.scheduler.submits] == [False] * 3 + [True] * 3 + [False]


async def test_a_scheduler_that_stops_is_waited_out(bpe_directory: Path) -> None:
    """It takes nothing new any more and says so; the door keeps the request for its successor."""
    stopping = sequence_pb2.Failure(code=grpc.StatusCode.UNAVAILABLE.value[0], message="shutting down")
    async with running_door(bpe_directory, FakeScheduler(lambda _: Script(failure=stopping))) as door:
        call = door.generation.Generate(request("hello", max_tokens=4))
        await until(lambda: len(door.scheduler.submits) == 1)
        await asyncio.sleep(0.2)
        assert len(door.service.attachment) == 1
        door.scheduler.script = lambda _: Script(ids=[259] * 4)
        await door.scheduler.kill()
        await door.scheduler.start()
        assert (await read_to_end(call)).token_ids == [259] * 4
        assert len(door.scheduler.submits) == 2


@pytest.mark.alone
async def test_patience_has_an_end(bpe_directory: Path) -> None:
    """After recovery_grace_s: waiting requests end UNAVAILABLE, new ones at once, and all is well when it
    is back.
    """
    fake = FakeScheduler(lambda submit: Script(ids=[65] * 50, hang_after=3))
    async with running_door(bpe_directory, fake, recovery_grace_s=0.6) as door:
        assert door.service.host.state == "ready"
        running = door.generation.Generate(request("hello", max_tokens=50))
        await running.read()
        await fake.kill()
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await read_to_end(running)
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - began > 0.5
        in_time(time.monotonic() - began, 5)
        await until(lambda: door.service.host.state == "degraded")
        began = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError, match="cannot be reached") as refused:
            await door.generation.GenerateOnce(pb.GenerateOnceRequest(request=request("hello")))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        in_time(time.monotonic() - began, 0.3)
        fake.script = lambda submit: Script(ids=[65] * 2)
        await fake.start()
        await until(lambda: door.service.host.state == "ready")
        reply = await door.generation.GenerateOnce(
            pb.GenerateOnceRequest(request=request("hello", max_tokens=2))
        )
        assert reply.choices[0].finished.usage.completion_tokens == 2


async def test_readiness_bears_a_short_loss(bpe_directory: Path) -> None:
    """DESIGN §3, health: a neighbour may be away for the grace before the door is not ready."""
    async with running_door(bpe_directory, recovery_grace_s=5) as door:
        await until(lambda: door.service.host.state == "ready")
        await door.scheduler.kill()
        await until(lambda: not door.service.attachment.link.attached)
        await asyncio.sleep(0.3)
        assert door.service.host.state == "ready"
        await door.scheduler.start()
        await door.until_attached()
        assert door.service.host.state == "ready"


async def test_the_door_may_come_first(bpe_directory: Path) -> None:
    """Item 170: started before the scheduler, and the scheduler before its worker; requests wait for both."""
    fake = FakeScheduler(max_model_len=0, worker_ready=False)
    await fake.start()
    await fake.kill()
    async with running_door(bpe_directory, fake) as door:
        assert door.service.host.state != "ready"
        waiting = asyncio.ensure_future(
            door.generation.GenerateOnce(pb.GenerateOnceRequest(request=request("hello", max_tokens=2)))
        )
        await asyncio.sleep(0.2)
        await fake.start()
        await door.until_attached()
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert door.service.host.state != "ready"
        fake.max_model_len, fake.worker_ready = 128, True
        await fake.welcome()
        assert (await waiting).choices[0].finished.usage.completion_tokens == 2
        assert door.service.host.state == "ready"


async def test_another_model_is_refused(bpe_directory: Path) -> None:
    """Item 170: a scheduler of another model: not ready, with the reason; requests are refused with it."""
    fake = FakeScheduler(fingerprint="something else")
    async with running_door(bpe_directory, fake) as door:
        await until(lambda: door.service.attachment.link.refusal)
        assert "fingerprints differ" in door.service.attachment.link.refusal
        assert door.service.host.state != "ready"
        with pytest.raises(grpc.aio.AioRpcError, match="fingerprints differ") as refused:
            await door.generation.GenerateOnce(pb.GenerateOnceRequest(request=request("hello")))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        fake.fingerprint = None
        await until(lambda: door.service.host.state == "ready", 10)


def outputs(stream_id: int, **fields: Any) -> scheduler_pb2.Outputs:
    message = scheduler_pb2.Outputs(**fields)
    if "stream_ids" not in fields and message.token_ids:
        message.stream_ids.append(stream_id)
    return message


async def test_repeated_ids_are_dropped(bpe_directory: Path) -> None:
    """DESIGN §3, attach stream: offsets tell what is here already."""

    def script(submit: scheduler_pb2.Submit) -> Script:
        def row(offset: int, *ids: int) -> scheduler_pb2.Outputs:
            return outputs(submit.stream_id, offsets=[offset], counts=[len(ids)], token_ids=ids)

        done = scheduler_pb2.FinishedChoice(stream_id=submit.stream_id, reason=sequence_pb2.END_REASON_LENGTH)
        rows = [
            row(0, 65, 66),
            row(0, 65),
            row(1, 66, 67),
            row(0, 65, 66, 67, 68),
            scheduler_pb2.Outputs(finished=[done]),
        ]
        return Script(raw=rows)

    async with running_door(bpe_directory, FakeScheduler(script)) as door:
        reply = await door.generation.GenerateOnce(
            pb.GenerateOnceRequest(request=request("x", max_tokens=10))
        )
        assert list(reply.choices[0].content.token_ids) == [65, 66, 67, 68]


async def test_a_gap_ends_that_request_alone(bpe_directory: Path) -> None:
    """Lost ids cannot be made up: INTERNAL for this one, cancelled upstream, the neighbour is untouched."""

    def script(submit: scheduler_pb2.Submit) -> Script:
        if submit.params.max_tokens == 7:
            return Script(raw=[outputs(submit.stream_id, offsets=[3], counts=[1], token_ids=[65])])
        return Script(ids=[65] * 30, delay_s=0.01)

    async with running_door(bpe_directory, FakeScheduler(script)) as door:
        neighbour = asyncio.ensure_future(
            door.generation.GenerateOnce(pb.GenerateOnceRequest(request=request("x", max_tokens=30)))
        )
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await door.generation.GenerateOnce(pb.GenerateOnceRequest(request=request("x", max_tokens=7)))
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert len((await neighbour).choices[0].content.token_ids) == 30
        await until(lambda: len(door.scheduler.cancels) == 1)


def nonsense(rng: random.Random, stream_id: int) -> scheduler_pb2.Outputs:
    """A message whose parts need not fit anything."""
    streams = [rng.choice([stream_id, 0, 10**9]) for _ in range(rng.randint(0, 3))]
    counts = [rng.randint(0, 4) for _ in streams]
    total = sum(counts) if rng.random() < 0.97 else rng.randint(0, 9)
    message = scheduler_pb2.Outputs(
        stream_ids=streams,
        indexes=[rng.choice([0, 0, 1, 2**32 - 1]) for _ in streams] if rng.random() < 0.3 else [],
        offsets=[rng.choice([0, 1, 2, 5, 2**32 - 1]) for _ in streams],
        counts=counts,
        token_ids=[rng.choice([rng.randrange(600), 2**32 - 1, 0, 1, 2]) for _ in range(total)],
    )
    if rng.random() < 0.1:
        message.finished.add(stream_id=stream_id, index=rng.choice([0, 3]), reason=rng.randint(0, 9))  # type: ignore[arg-type]
    if rng.random() < 0.05:
        failure = sequence_pb2.Failure(
            code=rng.randint(0, 40), message="x", field="y", retry_after_ms=rng.randint(0, 9)
        )
        message.failed.add(stream_id=stream_id, failure=failure)
    if rng.random() < 0.2:
        scores = sequence_pb2.Scores(
            position=rng.choice([0, 1, 5, 2**32 - 1]), logprobs=[float("nan")] * rng.randint(0, 3),
            ranks=[1] * rng.randint(0, 3), width=rng.randint(0, 2),
            top_token_ids=[2**32 - 1] * rng.randint(0, 3),
            top_logprobs=[float("-inf")] * rng.randint(0, 3),
        )  # fmt: skip
        message.scores.add(stream_id=stream_id, index=rng.choice([0, 0, 2]), scores=scores)
    return message


async def test_nonsense_never_breaks_the_door(bpe_directory: Path) -> None:
    """Item 82: random rows from a mock scheduler, ids beyond the vocabulary among them: no exception, no
    leftovers.
    """
    seen: dict[str, int] = {}

    def script(submit: scheduler_pb2.Submit) -> Script:
        seen[submit.request_id] = seen.get(submit.request_id, 0) + 1
        if submit.params.max_tokens == 3:
            return Script(ids=[65] * 3)
        rng = random.Random(f"{submit.params.seed}-{seen[submit.request_id]}")
        if seen[submit.request_id] > 3:
            return Script(ids=[65] * 40)
        return Script(raw=[nonsense(rng, submit.stream_id) for _ in range(25)])

    async with running_door(bpe_directory, FakeScheduler(script)) as door:

        async def one(seed: int) -> None:
            sampling: dict[str, Any] = {"logprobs": 2, "prompt_logprobs": 1} if seed % 2 else {"stop": ["AA"]}
            message = request("hello", max_tokens=40, seed=seed, **sampling)
            call = door.generation.Generate(message, timeout=3)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await read_to_end(call)
            assert await call.code() is not grpc.StatusCode.UNKNOWN
            assert "Traceback" not in (await call.details() or "")

        for start in range(0, 120, 30):
            await asyncio.gather(*(one(seed) for seed in range(start, start + 30)))
        reply = await door.generation.GenerateOnce(
            pb.GenerateOnceRequest(request=request("hello", max_tokens=3)), timeout=20
        )
        assert list(reply.choices[0].content.token_ids) == [65] * 3


async def test_random_ids_of_all_kinds(bpe_directory: Path, bpe: Vocabulary) -> None:
    """Item 82: ten thousand random ids, as they may come from any worker, are text and never an error."""
    rng = random.Random(3)
    ids = [rng.choice([rng.randrange(512), rng.randrange(2**32), 0, 1]) for _ in range(2000)]
    async with running_door(bpe_directory, FakeScheduler(lambda submit: Script(ids=ids, step=50))) as door:
        for skip in (True, False):
            reply = await door.generation.GenerateOnce(
                pb.GenerateOnceRequest(
                    request=request("x", skip_special_tokens=skip, ignore_eos=True, max_tokens=2000)
                )
            )
            assert list(reply.choices[0].content.token_ids) == ids
            reply.choices[0].content.text.encode()
