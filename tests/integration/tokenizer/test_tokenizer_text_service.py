"""TokenizerService, chats through the door, refusals of all kinds over the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from hundredfold.rpc import RequestError
from hundredfold.v1 import control_pb2, control_pb2_grpc
from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import tokenizer_pb2 as tok
from hundredfold_tokenizer.vocabulary import Vocabulary
from support.door import request
from support.fake_scheduler import FakeScheduler
from support.pace import at_most
from support.running_door import running_door
from support.tiny_text_model import byte_level_model

INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def refused(call: Any) -> RequestError:
    with at_most(1), pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return RequestError.from_rpc(caught.value)


def ask(**fields: Any) -> pb.GenerateOnceRequest:
    return pb.GenerateOnceRequest(request=pb.GenerateRequest(**fields))


async def test_encode_decode_count(spm_directory: Path, spm: Vocabulary) -> None:
    async with running_door(spm_directory) as door:
        text = "hello <s> world 가😀"
        encoded = await door.tokenizer.Encode(tok.EncodeRequest(text=text))
        assert list(encoded.token_ids) == spm.encode_text(text)
        bare = await door.tokenizer.Encode(tok.EncodeRequest(text=text, add_special_tokens=False))
        assert list(bare.token_ids) == list(encoded.token_ids)[1:]
        parsed = await door.tokenizer.Encode(tok.EncodeRequest(text="<s>hello</s>", parse_special=True))
        assert (parsed.token_ids[0], parsed.token_ids[-1], list(parsed.token_ids).count(1)) == (1, 2, 1)
        decoded = await door.tokenizer.Decode(tok.DecodeRequest(token_ids=encoded.token_ids))
        assert decoded.text == text
        shown = await door.tokenizer.Decode(tok.DecodeRequest(token_ids=[1, 2], skip_special_tokens=False))
        assert shown.text == "<s></s>"
        broken = await door.tokenizer.Decode(tok.DecodeRequest(token_ids=spm.encode_text("ñ")[:-1]))
        assert broken.text == "\ufffd"
        count = await door.tokenizer.CountTokens(tok.CountTokensRequest(text=text))
        assert (count.count, count.max_model_len) == (len(encoded.token_ids), 2048)
        empty = await door.tokenizer.Encode(tok.EncodeRequest(add_special_tokens=False))
        assert list(empty.token_ids) == []


async def test_text_needs_no_scheduler(bpe_directory: Path) -> None:
    fake = FakeScheduler()
    await fake.start()
    await fake.kill()
    async with running_door(bpe_directory, fake) as door:
        encoded = await door.tokenizer.Encode(tok.EncodeRequest(text="hello"))
        count = await door.tokenizer.CountTokens(tok.CountTokensRequest(text="hello"))
        assert count.count == len(encoded.token_ids)
        assert count.max_model_len == 2048


async def test_long_texts_and_many_ids(bpe_directory: Path) -> None:
    async with running_door(bpe_directory) as door:
        text = "hello world again " * 20_000
        encoded = await door.tokenizer.Encode(tok.EncodeRequest(text=text))
        decoded = await door.tokenizer.Decode(tok.DecodeRequest(token_ids=encoded.token_ids))
        assert decoded.text == text


async def test_chats(bpe_directory: Path, bpe: Vocabulary) -> None:
    """What RenderChat shows is what Generate uses, and CountTokens counts it."""
    chat = pb.ChatInput(messages=[pb.ChatMessage(role="user", content="hello <|im_end|> world")])
    async with running_door(bpe_directory) as door:
        rendered = await door.tokenizer.RenderChat(tok.RenderChatRequest(chat=chat))
        assert rendered.text == "<|im_start|>user\nhello <|im_end|> world<|im_end|>\n<|im_start|>assistant\n"
        assert [i for i in rendered.token_ids if i < 3] == [1, 2, 1]
        count = await door.tokenizer.CountTokens(tok.CountTokensRequest(chat=chat))
        assert count.count == len(rendered.token_ids)
        reply = await door.generation.GenerateOnce(ask(chat=chat, sampling={"max_tokens": 3}))
        assert reply.started.prompt_tokens == count.count
        assert list(door.scheduler.submits[0].prompt_token_ids) == list(rendered.token_ids)


async def test_no_chat_template(tmp_path: Path) -> None:
    """Item 90: FAILED_PRECONDITION, and text still works."""
    model = byte_level_model(tmp_path / "plain", tokenizer_config={"chat_template": None})
    async with running_door(model) as door:
        chat = pb.ChatInput(messages=[pb.ChatMessage(role="user", content="x")])
        error = await refused(door.generation.GenerateOnce(ask(chat=chat)))
        assert (error.code, error.field) == (grpc.StatusCode.FAILED_PRECONDITION, "chat")
        assert "'plain' has no chat template" in error.message
        await door.generation.GenerateOnce(ask(text="x", sampling={"max_tokens": 1}))


@pytest.mark.alone
async def test_a_template_that_refuses_and_one_that_never_ends(tmp_path: Path) -> None:
    """Item 90 over the wire: the template's own words, and an end within a second while health answers."""
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    async with running_door(
        byte_level_model(tmp_path / "m", tokenizer_config={"chat_template": source})
    ) as door:
        system = pb.ChatInput(messages=[pb.ChatMessage(role="system", content="x")])
        error = await refused(door.tokenizer.RenderChat(tok.RenderChatRequest(chat=system)))
        assert (error.code, "no system role here" in error.message) == (INVALID, True)
        user = pb.ChatInput(messages=[pb.ChatMessage(role="user", content="x")])
        spinning = asyncio.ensure_future(refused(door.generation.GenerateOnce(ask(chat=user))))
        for _ in range(10):
            with at_most(0.5):
                await door.tokenizer.Encode(tok.EncodeRequest(text="hello"))
            await asyncio.sleep(0.03)
        assert (await spinning).code is grpc.StatusCode.FAILED_PRECONDITION


BAD: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    ({}, INVALID, "input"),
    ({"text": ""}, INVALID, "text"),
    ({"token_ids": {}}, INVALID, "token_ids"),
    ({"token_ids": {"ids": [1, 2**32 - 1]}}, INVALID, "token_ids.ids[1]"),
    ({"token_ids": {"ids": [1, 512]}}, INVALID, "token_ids.ids[1]"),
    ({"token_ids": {"ids": [5] * 3000}}, INVALID, "token_ids"),
    ({"text": "hello " * 3000}, INVALID, "text"),
    ({"text": "x" * 3_000_000}, INVALID, "text"),
    ({"chat": {}}, INVALID, "chat.messages"),
    ({"chat": {"messages": [{"role": "user", "content": "x" * 3_000_000}]}}, INVALID, "chat"),
    ({"text": "x", "model": "gpt-4"}, grpc.StatusCode.NOT_FOUND, "model"),
    ({"text": "x", "request_id": "\n"}, INVALID, "request_id"),
    ({"text": "x", "priority": 1000}, INVALID, "priority"),
    ({"text": "x", "adapter_id": "file:///etc/passwd"}, grpc.StatusCode.UNIMPLEMENTED, "adapter_id"),
    ({"text": "x", "grammar": {"regex": "(a+)+$"}}, grpc.StatusCode.UNIMPLEMENTED, "grammar"),
    ({"text": "x", "sampling": {"temperature": float("nan")}}, INVALID, "sampling.temperature"),
    ({"text": "x", "sampling": {"n": 100_000}}, INVALID, "sampling.n"),
    ({"text": "x", "sampling": {"beam_width": 9}}, INVALID, "sampling.beam_width"),
    (
        {"text": "x", "sampling": {"beam_width": 2, "stop": ["."]}},
        grpc.StatusCode.UNIMPLEMENTED,
        "sampling.stop",
    ),
    ({"text": "x", "sampling": {"max_tokens": 0}}, INVALID, "sampling.max_tokens"),
    ({"text": "x", "sampling": {"bad_words": ["qzx" * 40]}}, INVALID, "sampling.bad_words[0]"),
    ({"text": "x", "sampling": {"logprobs": 10**6}}, INVALID, "sampling.logprobs"),
]


async def test_bad_requests_and_an_undisturbed_neighbour(bpe_directory: Path) -> None:
    """Items 106 to 108, 121, 153 to 156: the status of the table with the field, in no time; nobody else
    notices.
    """
    async with running_door(bpe_directory) as door:
        wanted = await door.generation.GenerateOnce(ask(text="hello", sampling={"max_tokens": 50, "seed": 1}))
        for fields, code, field in BAD:
            neighbour = door.generation.GenerateOnce(
                ask(text="hello", sampling={"max_tokens": 50, "seed": 1})
            )
            error = await refused(door.generation.GenerateOnce(ask(**fields)))
            assert (error.code, error.field) == (code, field), error.message
            assert error.message.startswith(field)
            assert len(error.message) < 400
            with pytest.raises(grpc.aio.AioRpcError) as streamed:
                async for _ in door.generation.Generate(pb.GenerateRequest(**fields)):
                    pass
            assert streamed.value.code() is code
            assert (await neighbour).choices[0].content == wanted.choices[0].content
        assert door.scheduler.cancels == []


async def test_bytes_that_are_no_request(bpe_directory: Path) -> None:
    """Item 151: garbage instead of a message is INVALID_ARGUMENT."""
    async with running_door(bpe_directory) as door:
        call: Any = door.channel.unary_unary("/hundredfold.v1.GenerationService/GenerateOnce")
        error = await refused(call(b"\xff\xfe\xfd" * 100))
        assert error.code is INVALID


@pytest.mark.parametrize(
    ("method", "message", "code", "field"),
    [
        ("Encode", tok.EncodeRequest(text="x" * 3_000_000), INVALID, "text"),
        ("Encode", tok.EncodeRequest(text="x", model="other"), grpc.StatusCode.NOT_FOUND, "model"),
        ("Decode", tok.DecodeRequest(token_ids=[1, 512]), INVALID, "token_ids[1]"),
        ("Decode", tok.DecodeRequest(token_ids=[1] * 2_000_001), INVALID, "token_ids"),
        ("Decode", tok.DecodeRequest(model="other"), grpc.StatusCode.NOT_FOUND, "model"),
        ("RenderChat", tok.RenderChatRequest(), INVALID, "chat.messages"),
        ("CountTokens", tok.CountTokensRequest(), INVALID, "input"),
    ],
)
async def test_bad_text_requests(
    bpe_directory: Path, method: str, message: Any, code: Any, field: str
) -> None:
    async with running_door(bpe_directory) as door:
        error = await refused(getattr(door.tokenizer, method)(message))
        assert (error.code, error.field) == (code, field)


async def test_what_the_door_says_of_itself(bpe_directory: Path) -> None:
    """Wish 7, D4: model, limits, versions, load; the totals add up."""
    async with running_door(bpe_directory, model_name="mine", max_deltas_per_s=400) as door:
        control: Any = control_pb2_grpc.ControlServiceStub(door.channel)
        await door.generation.GenerateOnce(ask(text="hello", model="mine", sampling={"max_tokens": 4}))
        await refused(door.generation.GenerateOnce(ask(text="")))
        (own, *_) = (await control.GetServerInfo(control_pb2.GetServerInfoRequest())).services
        assert (own.service, own.state, own.model.name) == ("tokenizer", "ready", "mine")
        assert own.model.max_model_len == 2048
        assert own.model.vocab_size == 512
        assert own.settings["max_requests"] == "16384"
        assert own.resident_bytes > 0
        assert own.libraries["tokenizers"]
        load = await control.GetLoad(control_pb2.GetLoadRequest())
        assert load.running == 0
        assert load.totals["finished"] == 1
        assert load.totals["rejected"] == 1
        assert load.totals["output_tokens"] == 4
        assert load.totals["delta_delay_us"] == 0
        running = door.generation.Generate(request("hello", max_tokens=2000))
        await running.read()
        load = await control.GetLoad(control_pb2.GetLoadRequest())
        assert load.running == 1
        assert load.totals["delta_delay_us"] == 2500  # one stream, 400 messages a second
        running.cancel()
