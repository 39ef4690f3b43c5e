"""Generate and GenerateOnce over real gRPC: text, stops, usage, finish, resume."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.internal.v1 import scheduler_pb2
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.vocabulary import Vocabulary
from support.answers import both, letters, once, says, stream
from support.door import request
from support.fake_scheduler import FakeScheduler, Script
from support.running_door import running_door
from support.tiny_text_model import byte_level_model

STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH


async def test_an_answer_and_its_terms(bpe_directory: Path, bpe: Vocabulary) -> None:
    """Item 112: one started event first, one finished event last, usage and timings as the scheduler
    counted.
    """
    async with running_door(bpe_directory, FakeScheduler(says(bpe, "the answer", 2))) as door:
        answer = await both(door, request("hello", seed=7, max_tokens=50))
        assert answer.text == "the answer"
        assert answer.started is not None
        assert answer.started.model == bpe_directory.name
        assert answer.started.prompt_tokens == len(bpe.encode_text("hello"))
        assert answer.started.sampling.seed == 7
        assert answer.started.sampling.max_tokens == 50
        (finished,) = answer.finished
        assert finished.reason == STOP
        assert finished.stop_token_id == 2
        assert (
            finished.usage.completion_tokens
            == len(answer.token_ids)
            == len(bpe.encode_text("the answer")) + 1
        )
        assert finished.usage.prompt_tokens == answer.started.prompt_tokens
        assert finished.usage.cached_tokens == 3
        assert finished.timings.queue.ToMicroseconds() == 1000
        assert finished.timings.prefill.ToMicroseconds() == 2000
        assert finished.timings.decode.ToMicroseconds() == 3000
        assert finished.timings.preemptions == 1


async def test_what_the_scheduler_gets(bpe_directory: Path, bpe: Vocabulary, tmp_path: Path) -> None:
    """Item 88 and "every default resolved": eos of all files, drawn seed, encoded bad words, rest of the
    context.
    """
    model = byte_level_model(
        tmp_path / "m",
        generation_config={"eos_token_id": [2, 300], "temperature": 0.7},
        config={"eos_token_id": 299},
    )
    async with running_door(model, FakeScheduler(says(bpe, "x", 2))) as door:
        message = request("hello", bad_words=["fox"], stop_token_ids=[17], logit_bias={5: 1.0}, min_tokens=0)
        message.tenant, message.cache_salt, message.priority = "me", "s", 3
        answer = await stream(door, message)
        (submit,) = door.scheduler.submits
        params = submit.params
        assert list(submit.prompt_token_ids) == bpe.encode_text("hello")
        assert set(params.stop_token_ids) == {2, 17, 299, 300}
        assert params.temperature == pytest.approx(0.7)
        assert params.max_tokens == 2048 - len(submit.prompt_token_ids)
        assert answer.started is not None
        assert params.seed == answer.started.sampling.seed
        assert list(answer.started.from_generation_config) == ["temperature"]
        words = [list(word.token_ids) for word in params.bad_words]
        assert bpe.encode_text("fox") in words
        assert bpe.encode_text(" fox") in words
        assert list(params.bias_token_ids) == [5]
        assert (submit.tenant, submit.priority, len(submit.cache_salt)) == ("me", 3, 32)
        assert (submit.n, submit.deadline_ms > 0, submit.skip_prefix_cache) == (1, True, False)
        assert params.vocab_limit == (bpe.size if bpe.size < 512 else 0)
        ignoring = await stream(door, request("hello", ignore_eos=True, prompt_logprobs=0, max_tokens=3))
        assert ignoring.finished[0].reason == LENGTH
        assert not door.scheduler.submits[1].params.stop_token_ids
        assert door.scheduler.submits[1].skip_prefix_cache


async def test_seeds_differ_between_requests(bpe_directory: Path) -> None:
    """Item 111: no seed in the request, no two answers alike."""
    async with running_door(bpe_directory) as door:
        for _ in range(5):
            await stream(door, request("hello", max_tokens=1))
        assert len({submit.params.seed for submit in door.scheduler.submits}) == 5


async def test_nothing_is_lost_between_the_last_delta_and_the_end(
    bpe_directory: Path, bpe: Vocabulary
) -> None:
    """Item 135: short answers, jitter, slow readers: deltas add up to the unary text, the finished event
    is last.
    """

    def script(submit: scheduler_pb2.Submit) -> Script:
        rng = random.Random(submit.params.seed)
        ids = [rng.randrange(3, 512) for _ in range(8)]
        return Script(ids=ids, delay_s=0.003, step=rng.randint(1, 3))

    async with running_door(bpe_directory, FakeScheduler(script)) as door:

        async def one(number: int) -> None:
            message = request("hello", max_tokens=1 + number % 5, seed=number)
            streamed, whole = (
                await stream(door, message, pause_s=0.001 * (number % 3)),
                await once(door, message),
            )
            assert streamed.text == whole.choices[0].content.text
            assert streamed.token_ids == list(whole.choices[0].content.token_ids)
            assert len(streamed.token_ids) == streamed.finished[0].usage.completion_tokens == 1 + number % 5

        for start in range(0, 400, 50):
            await asyncio.gather(*(one(number) for number in range(start, start + 50)))


@pytest.mark.parametrize("step", [1, 3, 100])
async def test_stop_strings(bpe_directory: Path, bpe: Vocabulary, step: int) -> None:
    """Item 85: exactly "ABC", streamed and whole, however the ids come; only kept tokens count."""
    async with running_door(
        bpe_directory, FakeScheduler(letters(bpe, "ABCDEFGHIJKLMNOPQ", step=step))
    ) as door:
        answer = await both(door, request("hello", stop=["DEFGHIJ"], max_tokens=100))
        assert answer.text == "ABC"
        assert answer.finished[0].reason == STOP
        assert answer.finished[0].stop_string == "DEFGHIJ"
        assert answer.finished[0].usage.completion_tokens == len(answer.token_ids) == 10
        assert answer.finished[0].usage.cached_tokens == 3  # the scheduler's account
        if step < 100:
            assert [finish.kept_tokens for finish in door.scheduler.finishes] == [10, 10]
        kept = await both(door, request("hello", stop=["DEFGHIJ"], include_stop=True, max_tokens=100))
        assert kept.text == "ABCDEFGHIJ"
        free = await both(door, request("hello", stop=["DEFGHIJKM"], max_tokens=100))
        assert free.text == "ABCDEFGHIJKLMNOPQ"
        assert free.finished[0].reason == LENGTH


async def test_a_stop_string_beats_what_comes_later(bpe_directory: Path, bpe: Vocabulary) -> None:
    """DESIGN §3: a match wins over a later token's EOS or length in the same message."""
    async with running_door(bpe_directory, FakeScheduler(letters(bpe, "ABCDEF", step=100))) as door:
        answer = await both(door, request("hello", stop=["CD"], max_tokens=5))
        assert answer.text == "AB"
        assert answer.finished[0].stop_string == "CD"
        assert answer.finished[0].usage.completion_tokens == 4
        assert not door.scheduler.finishes  # it had ended already


async def test_a_stop_string_needs_no_answer_from_the_scheduler(bpe_directory: Path, bpe: Vocabulary) -> None:
    fake = FakeScheduler(letters(bpe, "ABCDEF" * 50, delay_s=0.01), reply_to_finish=False)
    async with running_door(bpe_directory, fake) as door:
        answer = await stream(door, request("hello", stop=["CD"], max_tokens=300))
        assert (answer.text, answer.finished[0].stop_string) == ("AB", "CD")
        assert answer.finished[0].usage.completion_tokens == 4


async def test_fields_of_a_newer_client(bpe_directory: Path) -> None:
    """Item 143: unknown fields are passed over, and unset ones keep their meaning."""
    async with running_door(bpe_directory) as door:
        raw = request("hello", max_tokens=2).SerializeToString() + b"\xba\x3e\x03new"
        wrapped = b"\x0a" + bytes([len(raw)]) + raw
        call: Any = door.channel.unary_unary(
            "/hundredfold.v1.GenerationService/GenerateOnce",
            response_deserializer=pb.GenerateOnceResponse.FromString,
        )
        reply = await call(wrapped)
        assert reply.choices[0].finished.usage.completion_tokens == 2
        assert reply.started.sampling.temperature == 1


async def test_open_streams_do_not_keep_others_out(bpe_directory: Path) -> None:
    """Item 139: hundreds of open streams and health watchers hold no threads; a unary call is served."""
    fake = FakeScheduler(
        lambda submit: Script(ids=[65] * 9, hang_after=0 if submit.params.max_tokens > 5 else None)
    )
    async with running_door(bpe_directory, fake) as door:
        health: Any = health_pb2_grpc.HealthStub(door.channel)
        open_calls = [door.generation.Generate(request("hello", max_tokens=9)) for _ in range(300)]
        open_calls += [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(50)]
        await asyncio.gather(*(call.read() for call in open_calls))
        async with asyncio.timeout(30):
            assert len((await once(door, request("hello", max_tokens=3))).choices[0].content.token_ids) == 3
        for call in open_calls:
            call.cancel()


async def test_stop_strings_count_from_min_tokens_on(bpe_directory: Path, bpe: Vocabulary) -> None:
    async with running_door(bpe_directory, FakeScheduler(letters(bpe, "ABCABCABC"))) as door:
        answer = await both(door, request("hello", stop=["C"], min_tokens=4, max_tokens=9))
        assert answer.text == "ABCAB"
        assert answer.finished[0].usage.completion_tokens == 6
        assert door.scheduler.submits[0].params.min_tokens == 4


async def test_stop_strings_over_characters_and_words(bpe_directory: Path, bpe: Vocabulary) -> None:
    """A stop string that ends inside a token, and one of characters that are split over tokens."""
    async with running_door(bpe_directory, FakeScheduler(says(bpe, "hello world again"))) as door:
        assert (await both(door, request("x", stop=["o wor"], max_tokens=50))).text == "hell"
    async with running_door(bpe_directory, FakeScheduler(letters(bpe, "a가😀b"))) as door:
        assert (await both(door, request("x", stop=["😀"], max_tokens=50))).text == "a가"


async def test_a_special_token_as_stop_string(bpe_directory: Path, bpe: Vocabulary) -> None:
    """Item 87: stop="<|im_start|>" works though special tokens are left out, also together with text."""
    async with running_door(bpe_directory, FakeScheduler(says(bpe, "hello", 1, 300))) as door:
        answer = await both(door, request("x", stop=["<|im_start|>"], max_tokens=50))
        assert (answer.text, answer.finished[0].stop_string) == ("hello", "<|im_start|>")
        answer = await both(door, request("x", stop=["lo<|im_start|>"], max_tokens=50))
        assert (answer.text, answer.finished[0].stop_string) == ("hel", "lo<|im_start|>")
        shown = await both(
            door, request("x", stop=["<|im_start|>"], skip_special_tokens=False, max_tokens=50)
        )
        assert (shown.text, shown.finished[0].stop_string) == ("hello", "<|im_start|>")
    async with running_door(bpe_directory, FakeScheduler(says(bpe, "hello", 2))) as door:
        answer = await both(door, request("x", stop=["<|im_end|>"], max_tokens=50))
        assert (answer.text, answer.finished[0].stop_string) == ("hello", "<|im_end|>")
        assert answer.finished[0].usage.completion_tokens == len(bpe.encode_text("hello")) + 1


async def test_cut_inside_a_character(bpe_directory: Path, bpe: Vocabulary) -> None:
    """Item 80: max_tokens=2 inside a four-byte emoji: OK, length, one U+FFFD both ways."""
    async with running_door(bpe_directory, FakeScheduler(letters(bpe, "😀"))) as door:
        answer = await both(door, request("x", max_tokens=2))
        assert answer.text == "\ufffd"
        assert answer.finished[0].reason == LENGTH


async def test_characters_are_never_split(bpe_directory: Path, bpe: Vocabulary) -> None:
    """Item 79 through the door: no delta holds U+FFFD, together they are the text."""
    async with running_door(bpe_directory, FakeScheduler(letters(bpe, "가😀é" * 5, delay_s=0.002))) as door:
        deltas = [
            event.delta.text
            async for event in door.generation.Generate(request("x", max_tokens=100))
            if event.HasField("delta")
        ]
        assert "".join(deltas) == "가😀é" * 5
        assert not any("\ufffd" in delta for delta in deltas)


async def test_spaces_after_a_sentencepiece_prompt(spm_directory: Path, spm: Vocabulary) -> None:
    """Item 83: a continuation keeps its first space; after nothing but BOS it has none."""
    ids = spm.encode_text("Hello world", add_special=False)
    async with running_door(spm_directory, FakeScheduler(lambda submit: Script(ids=ids))) as door:
        assert (await both(door, request("hello", max_tokens=len(ids)))).text == " Hello world"
        assert (await both(door, request([1], max_tokens=len(ids)))).text == "Hello world"


@pytest.mark.parametrize("prompt", ["", " ", "<|im_end|>"])
async def test_empty_prompts(bpe_directory: Path, spm_directory: Path, prompt: str) -> None:
    """Item 108: nothing to go on is refused; with BOS there is something."""
    async with running_door(bpe_directory) as door:
        if prompt:
            await stream(door, request(prompt, max_tokens=1))
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stream(door, request(prompt, max_tokens=1))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    async with running_door(spm_directory) as door:
        await stream(door, request(prompt, max_tokens=1))
        assert door.scheduler.submits[0].prompt_token_ids[0] == 1


async def test_only_scores(bpe_directory: Path) -> None:
    """Item 109: max_tokens 0 with prompt_logprobs scores the prompt and generates nothing."""
    fake = FakeScheduler(lambda submit: Script(scores=lambda at, width: (-1.0 * at, 1, [])))
    async with running_door(bpe_directory, fake) as door:
        answer = await stream(door, request([5, 6, 7], max_tokens=0, prompt_logprobs=0))
        assert answer.text == ""
        assert answer.finished[0].reason == LENGTH
        assert answer.finished[0].usage.completion_tokens == 0
        assert answer.prompt_logprobs is not None
        assert [entry.token.logprob for entry in answer.prompt_logprobs.tokens] == [0.0, -1.0, -2.0]
        whole = await once(door, request([5, 6, 7], max_tokens=0, prompt_logprobs=0))
        assert whole.prompt_logprobs == answer.prompt_logprobs


async def test_length_limits(bpe_directory: Path) -> None:
    """Item 121: L is refused with both numbers, L - 1 leaves one token, max_tokens is cut to the room."""
    async with running_door(bpe_directory, FakeScheduler(max_model_len=40)) as door:
        with pytest.raises(grpc.aio.AioRpcError, match=r"40 tokens.*max_model_len = 40"):
            await stream(door, request([5] * 40))
        answer = await both(door, request([5] * 39, max_tokens=10))
        assert answer.finished[0].usage.completion_tokens == 1
        assert answer.finished[0].reason == LENGTH
        assert (await stream(door, request([5] * 10))).started.sampling.max_tokens == 30  # type: ignore[union-attr]
