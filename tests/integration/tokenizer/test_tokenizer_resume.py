"""Resuming an answer whose connection was lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.vocabulary import Vocabulary
from support.answers import letters, once, says, stream
from support.door import Answer, request
from support.fake_scheduler import FakeScheduler, Script
from support.running_door import running_door


def resumed(message: pb.GenerateRequest, ids: Sequence[int], chars: int) -> pb.GenerateRequest:
    again = pb.GenerateRequest()
    again.CopyFrom(message)
    again.resume.choices.add(index=0, token_ids=ids, num_chars=chars)
    return again


async def test_resume_at_every_event(bpe_directory: Path, bpe: Vocabulary) -> None:
    """DESIGN §3, replay: whatever a client had when its connection broke, the rest follows and nothing
    repeats.
    """
    text = "hello 가😀 world STO again STOP never"
    fake = FakeScheduler(letters(bpe, text, delay_s=0.004))
    async with running_door(bpe_directory, fake, max_deltas_per_s=1e9) as door:
        for sampling in ({}, {"stop": ["STOP"]}):
            message = request("x", seed=1, max_tokens=len(text.encode()), **sampling)
            whole = await stream(door, message)
            before = Answer()
            cuts = [([], 0)]
            async for event in door.generation.Generate(message):
                before.take(event)
                cuts.append((list(before.token_ids), len(before.text)))
            assert len(cuts) > 25
            for ids, chars in cuts:
                after = await stream(door, resumed(message, ids, chars))
                assert before.text[:chars] + after.text == whole.text
                assert ids + after.token_ids == whole.token_ids
                assert after.finished[0].usage == pb.Usage(
                    prompt_tokens=whole.finished[0].usage.prompt_tokens,
                    completion_tokens=whole.finished[0].usage.completion_tokens,
                    cached_tokens=after.finished[0].usage.cached_tokens,
                )
                assert after.finished[0].reason == whole.finished[0].reason
                assert after.finished[0].stop_string == whole.finished[0].stop_string


async def test_resume_of_an_ended_answer(bpe_directory: Path, bpe: Vocabulary) -> None:
    """Only the finished event was lost: it comes without asking the scheduler."""
    async with running_door(bpe_directory, FakeScheduler(says(bpe, "hello", 2))) as door:
        message = request("x", seed=1, max_tokens=50)
        whole = await stream(door, message)
        count = len(door.scheduler.submits)
        after = await stream(door, resumed(message, whole.token_ids, len(whole.text)))
        assert (after.text, after.token_ids) == ("", [])
        assert after.finished[0].stop_token_id == 2
        assert len(door.scheduler.submits) == count
        with pytest.raises(grpc.aio.AioRpcError, match="num_chars = 99"):
            await stream(door, resumed(message, whole.token_ids, 99))
        with pytest.raises(grpc.aio.AioRpcError, match="streams only"):
            await once(door, resumed(message, whole.token_ids, 0))


async def test_min_tokens_move_the_end_of_a_resumed_answer(bpe_directory: Path, bpe: Vocabulary) -> None:
    """An EOS that came too early to count does not end a resumed answer."""
    ids = [*bpe.encode_text("ab"), 2, *bpe.encode_text("cd")]
    async with running_door(bpe_directory, FakeScheduler(lambda submit: Script(ids=ids))) as door:
        message = request("x", seed=1, max_tokens=len(ids), min_tokens=len(ids))
        after = await stream(door, resumed(message, ids[:3], 2))
        assert after.text == "cd"
        assert list(door.scheduler.submits[-1].prior[0].token_ids) == ids[:3]
