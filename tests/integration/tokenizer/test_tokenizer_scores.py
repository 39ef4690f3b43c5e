"""Log probabilities through the door."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf import json_format

from hundredfold.internal.v1 import scheduler_pb2
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.vocabulary import Vocabulary
from support.door import Answer, request
from support.fake_scheduler import FakeScheduler, Script
from support.running_door import RunningDoor, running_door

HARD = "a가😀é "


def scored(at: int, width: int) -> tuple[float, int, list[tuple[int, float]]]:
    """A score that tells its position."""
    return -0.5 * at, 1 + at % 3, [(260 + rank, -0.25 * rank) for rank in range(width)]


def letters(vocabulary: Vocabulary, text: str, *more: int) -> Callable[[scheduler_pb2.Submit], Script]:
    raw = list(vocabulary.table.raw)
    ids = [*(raw.index(bytes([byte])) for byte in text.encode()), *more]
    return lambda submit: Script(ids=ids, scores=scored, delay_s=0.001)


async def stream(door: RunningDoor, message: pb.GenerateRequest) -> Answer:
    answer = Answer()
    order = []
    async for event in door.generation.Generate(message, timeout=30):
        answer.take(event)
        order.append(event.WhichOneof("event"))
        if event.HasField("delta") and event.delta.token_ids and message.sampling.HasField("logprobs"):
            assert len(event.delta.logprobs) == len(event.delta.token_ids)
    if "prompt_logprobs" in order and "delta" in order:
        assert order.index("prompt_logprobs") < order.index("delta")
    return answer


@pytest.mark.parametrize("kind", ["bpe", "spm"])
async def test_bytes_of_tokens(kind: str, request: pytest.FixtureRequest) -> None:
    """Item 96: byte tokens have bytes; joined, they are the text; parts of a character read U+FFFD."""
    from support.door import request as ask

    vocabulary: Vocabulary = request.getfixturevalue(kind)
    directory: Path = request.getfixturevalue(f"{kind}_directory")
    async with running_door(directory, FakeScheduler(letters(vocabulary, HARD, 2))) as door:
        answer = await stream(door, ask("hello", logprobs=2, max_tokens=100))
        assert answer.text == HARD
        assert b"".join(entry.token.raw for entry in answer.logprobs).decode() == HARD
        assert [entry.token.token_id for entry in answer.logprobs] == answer.token_ids
        assert "\ufffd" in "".join(entry.token.text for entry in answer.logprobs)
        assert answer.logprobs[-1].token.token_id == 2
        assert answer.logprobs[-1].token.text in ("<|im_end|>", "</s>")
        prompt = answer.started.prompt_tokens if answer.started else 0
        for position, entry in enumerate(answer.logprobs, prompt):
            assert entry.token.logprob == pytest.approx(-0.5 * position)
            assert entry.token.rank == 1 + position % 3
            assert [rival.token_id for rival in entry.top] == [260, 261]
            assert [rival.logprob for rival in entry.top] == [0.0, -0.25]


async def test_no_rivals(bpe_directory: Path, bpe: Vocabulary) -> None:
    async with running_door(bpe_directory, FakeScheduler(letters(bpe, "abc"))) as door:
        answer = await stream(door, request("hello", logprobs=0, max_tokens=3))
        assert [len(entry.top) for entry in answer.logprobs] == [0, 0, 0]
        assert not (await stream(door, request("hello", max_tokens=3))).logprobs


async def test_prompt_scores(bpe_directory: Path, bpe: Vocabulary) -> None:
    """Item 36, the door's side: len(prompt) entries, the first empty, before the first delta, each time
    the same.
    """
    async with running_door(bpe_directory, FakeScheduler(letters(bpe, "abc"))) as door:
        message = request("hello world again", prompt_logprobs=1, max_tokens=3)
        first, second = await stream(door, message), await stream(door, message)
        ids = bpe.encode_text("hello world again")
        assert first.prompt_logprobs == second.prompt_logprobs
        assert first.prompt_logprobs is not None
        entries = first.prompt_logprobs.tokens
        assert len(entries) == len(ids)
        assert entries[0] == pb.TokenLogprobs()
        assert [entry.token.token_id for entry in entries[1:]] == ids[1:]
        assert [entry.token.logprob for entry in entries[1:]] == [
            pytest.approx(-0.5 * at) for at in range(1, len(ids))
        ]
        one = await stream(door, request([65], prompt_logprobs=1, max_tokens=1))
        assert one.prompt_logprobs is not None
        assert len(one.prompt_logprobs.tokens) == 1


async def test_values_that_json_cannot_hold(bpe_directory: Path) -> None:
    """Item 110: minus infinity and NaN become -9999; the reply survives a round trip through JSON."""
    values = [float("-inf"), float("nan"), -20000.0, -0.5]
    fake = FakeScheduler(
        lambda submit: Script(
            ids=[65] * 4, scores=lambda at, width: (values[at % 4], 1, [(66, values[at % 4])])
        )
    )
    async with running_door(bpe_directory, fake) as door:
        reply = await door.generation.GenerateOnce(
            pb.GenerateOnceRequest(request=request([65] * 4, logprobs=1, max_tokens=4))
        )
        entries = reply.choices[0].content.logprobs
        assert [entry.token.logprob for entry in entries] == [-9999, -9999, -9999, -0.5]
        assert [entry.top[0].logprob for entry in entries] == [-9999, -9999, -9999, -0.5]
        text = json_format.MessageToJson(reply)
        json.loads(text, parse_constant=lambda name: pytest.fail(name))
        assert json_format.Parse(text, pb.GenerateOnceResponse()) == reply


async def test_ids_without_text_are_not_listed(bpe_directory: Path, bpe: Vocabulary) -> None:
    """Item 92: a model padded beyond the tokenizer: told never to sample there, and rivals there are left
    out.
    """
    fake = FakeScheduler(
        lambda submit: Script(
            ids=[65, 66], scores=lambda at, width: (-1.0, 1, [(bpe.size, -0.1), (65, -0.2)])
        ),
        vocab_size=bpe.size + 12,
    )
    async with running_door(bpe_directory, fake) as door:
        answer = await stream(door, request([65], logprobs=2, max_tokens=2))
        assert [[rival.token_id for rival in entry.top] for entry in answer.logprobs] == [[65], [65]]
        assert fake.submits[0].params.vocab_limit == bpe.size


async def test_scores_after_a_stop_string_are_dropped(bpe_directory: Path, bpe: Vocabulary) -> None:
    """DESIGN §3: what lies beyond a stop string is neither delivered nor counted, scores included."""
    async with running_door(bpe_directory, FakeScheduler(letters(bpe, "ABCDEF"))) as door:
        answer = await stream(door, request("x", stop=["C"], logprobs=1, max_tokens=6))
        assert answer.text == "AB"
        assert len(answer.logprobs) == len(answer.token_ids) == 3


async def test_large_replies(bpe_directory: Path) -> None:
    """Item 133: thousands of tokens with twenty rivals in one reply, or RESOURCE_EXHAUSTED naming the
    limit.
    """
    fake = FakeScheduler(lambda submit: Script(ids=[65] * 1500, step=100, scores=scored), max_model_len=4096)
    message = pb.GenerateOnceRequest(
        request=request([65] * 1500, logprobs=20, prompt_logprobs=20, max_tokens=1500)
    )
    async with running_door(bpe_directory, fake) as door:
        reply = await door.generation.GenerateOnce(message, timeout=60)
        assert len(reply.choices[0].content.logprobs) == 1500
        assert len(reply.prompt_logprobs.tokens) == 1500
        assert math.isclose(reply.choices[0].content.logprobs[-1].token.logprob, -0.5 * 2999)
        size = reply.ByteSize()
        assert size > 1_000_000
    async with running_door(
        bpe_directory, FakeScheduler(fake.script, max_model_len=4096), max_message_bytes=size // 2
    ) as door:
        with pytest.raises(grpc.aio.AioRpcError, match=r"max_message_bytes is \d+") as refused:
            await door.generation.GenerateOnce(message, timeout=60)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
