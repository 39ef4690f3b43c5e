"""Bad input gets a precise status within a second, and nobody else notices."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc as rpc
from support.door import OPTIONS, generate_all, request
from support.pace import in_time
from support.stack import Stack

PROMPT = [5, 6, 7]
INVALID = grpc.StatusCode.INVALID_ARGUMENT
LATER = grpc.StatusCode.UNIMPLEMENTED


def with_fields(**fields: object) -> pb.GenerateRequest:
    """A good request but for these fields."""
    message = request(PROMPT, max_tokens=2)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def grammar() -> pb.GenerateRequest:
    message = request(PROMPT)
    message.grammar.regex = "(a+)+$"
    return message


CASES = {
    "nothing": (pb.GenerateRequest(), INVALID, "input"),
    "empty text": (request(""), INVALID, "text"),
    "empty ids": (pb.GenerateRequest(token_ids=pb.TokenIds()), INVALID, "token_ids"),
    "id too large": (request([5, 512]), INVALID, "token_ids"),
    "id absurd": (request([4_000_000_000]), INVALID, "token_ids"),
    "prompt too long": (request([5] * 600), INVALID, "600"),
    "30 MB text": (request("word " * 6_000_000), INVALID, "30000007 bytes"),  # refused before it is parsed
    "nan temperature": (request(PROMPT, temperature=math.nan), INVALID, "temperature"),
    "infinite temperature": (request(PROMPT, temperature=math.inf), INVALID, "temperature"),
    "negative temperature": (request(PROMPT, temperature=-1), INVALID, "temperature"),
    "top_p 0": (request(PROMPT, top_p=0), INVALID, "top_p"),
    "top_p 1.5": (request(PROMPT, top_p=1.5), INVALID, "top_p"),
    "top_p nan": (request(PROMPT, top_p=math.nan), INVALID, "top_p"),
    "min_p -1": (request(PROMPT, min_p=-1), INVALID, "min_p"),
    "presence 3": (request(PROMPT, presence_penalty=3), INVALID, "presence_penalty"),
    "frequency nan": (request(PROMPT, frequency_penalty=math.nan), INVALID, "frequency_penalty"),
    "repetition 0": (request(PROMPT, repetition_penalty=0), INVALID, "repetition_penalty"),
    "logprobs 10^6": (request(PROMPT, logprobs=1_000_000), INVALID, "logprobs"),
    "prompt_logprobs 21": (request(PROMPT, prompt_logprobs=21), INVALID, "prompt_logprobs"),
    "empty stop": (request(PROMPT, stop=[""]), INVALID, "stop"),
    "10,000 stops": (request(PROMPT, stop=["a"] * 10_000), INVALID, "stop"),
    "stop of 2 kB": (request(PROMPT, stop=["a" * 2048]), INVALID, "stop"),
    "stop id too large": (request(PROMPT, stop_token_ids=[9999]), INVALID, "stop_token_ids"),
    "bias on no token": (request(PROMPT, logit_bias={70_000: 1.0}), INVALID, "logit_bias"),
    "bias 1000": (request(PROMPT, logit_bias={5: 1000.0}), INVALID, "logit_bias"),
    "min over max": (request(PROMPT, max_tokens=2, min_tokens=5), INVALID, "min_tokens"),
    "max_tokens 0": (request(PROMPT, max_tokens=0), INVALID, "max_tokens"),
    "n 0": (request(PROMPT, n=0), INVALID, "n"),
    "n 100,000": (request(PROMPT, n=100_000), INVALID, "n"),
    "priority 1000": (with_fields(priority=1000), INVALID, "priority"),
    "unknown model": (with_fields(model="gpt-9"), grpc.StatusCode.NOT_FOUND, "gpt-9"),
    "9 beams": (request(PROMPT, beam_width=9), INVALID, "beam_width"),
    "more choices than beams": (request(PROMPT, beam_width=2, n=3), INVALID, "n"),
    "beams with a temperature": (request(PROMPT, beam_width=2, temperature=0.7), INVALID, "temperature"),
    "a length penalty for no beams": (request(PROMPT, length_penalty=2.0), INVALID, "length_penalty"),
    "beams with stop strings": (request(PROMPT, beam_width=2, stop=["a"]), LATER, "stop"),
    "beams with scores": (request(PROMPT, beam_width=2, logprobs=1), LATER, "logprobs"),
    "adapter": (with_fields(adapter_id="x"), LATER, "adapter_id"),
    "grammar": (grammar(), LATER, "grammar"),
}


@pytest.fixture(scope="module")
def short_stack(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """TINY with a context of 512 tokens."""
    made = Stack(tiny_model, tmp_path_factory.mktemp("short"), {"worker": {"max_model_len": 512}})
    with made.serving() as running:
        yield running


NEIGHBOUR = request([9, 8, 7], max_tokens=100, ignore_eos=True, temperature=1.0, seed=5)
"""What others are doing meanwhile."""


@pytest.fixture(scope="module")
def undisturbed(short_stack: Stack) -> list[int]:
    """The neighbour's ids when it is alone."""
    return asyncio.run(generate_all(short_stack.address, [NEIGHBOUR]))[0].token_ids


@pytest.mark.parametrize("case", CASES, ids=str)
def test_refused_with_field_and_status(short_stack: Stack, undisturbed: list[int], case: str) -> None:
    message, code, named = CASES[case]

    async def refuse_beside_neighbour() -> tuple[grpc.aio.AioRpcError, float, list[int]]:
        beside = asyncio.create_task(generate_all(short_stack.address, [NEIGHBOUR]))
        async with grpc.aio.insecure_channel(short_stack.address, options=OPTIONS) as channel:
            began = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                async for _ in rpc.GenerationServiceStub(channel).Generate(message):
                    pass
            took = time.monotonic() - began
        return raised.value, took, (await beside)[0].token_ids

    error, took, beside = asyncio.run(refuse_beside_neighbour())
    assert error.code() == code, error
    assert named in error.details()
    in_time(took, 1, "the refusal")
    assert beside == undisturbed
    if code == INVALID and case != "prompt too long":
        details = [
            d for d in rpc_status.from_call(error).details if d.Is(error_details_pb2.BadRequest.DESCRIPTOR)
        ]
        assert details, "no BadRequest"


def test_duplicate_id_is_refused_and_the_first_goes_on(short_stack: Stack) -> None:
    """Report 27."""

    async def twice() -> tuple[grpc.StatusCode, int]:
        async with grpc.aio.insecure_channel(short_stack.address) as channel:
            stub = rpc.GenerationServiceStub(channel)
            message = request(PROMPT, max_tokens=400, ignore_eos=True)
            message.request_id = "twin"
            first = stub.Generate(message)
            events = aiter(first)
            await anext(events)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                async for _ in stub.Generate(message):
                    pass
            ids = 0
            async for event in events:
                ids += len(event.delta.token_ids)
            return raised.value.code(), ids

    assert asyncio.run(twice()) == (grpc.StatusCode.ALREADY_EXISTS, 400)


def test_nothing_is_left(short_stack: Stack) -> None:
    """After all of that the scheduler holds nothing, and everything is answered."""
    short_stack.wait_idle()
