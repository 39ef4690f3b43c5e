"""Several choices of a request through real services: each its own, the same each time, in nobody's way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import grpc
import grpc.aio
import pytest

from hundredfold import Client
from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc as rpc
from support.door import OPTIONS, generate_all, request
from support.stack import Stack

PROMPT = list(range(40, 90))
SEEDED: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": 7, "ignore_eos": True}
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def tiny(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """TINY in fp32, with seats for few and memory for fewer."""
    flags = {"worker": {"dtype": "fp32", "block_size": 16, "max_num_seqs": 8, "num_kv_blocks": 130}}
    with Stack(tiny_model, tmp_path_factory.mktemp("choices"), flags).serving() as running:
        yield running


def ids_of(answer: Any) -> list[tuple[int, ...]]:
    return [choice.token_ids for choice in answer.choices]


def test_four_different_answers_the_same_four_each_time(tiny: Stack) -> None:
    """Report 105: choice 0 is what n = 1 gives, the others differ; neighbours notice nothing."""
    with Client(tiny.address) as client:
        alone = client.generate_once(token_ids=PROMPT, **SEEDED)
        first = client.generate(token_ids=PROMPT, n=4, **SEEDED).result()
        neighbours = [request([9, 8, 7], max_tokens=60, temperature=1.0, seed=5) for _ in range(6)]
        quiet = asyncio.run(generate_all(tiny.address, neighbours[:1]))[0].token_ids
        crowd = [*neighbours, request(PROMPT, n=4, **SEEDED)]
        beside = asyncio.run(generate_all(tiny.address, crowd))
        again = client.generate_once(token_ids=PROMPT, n=4, **SEEDED)
    assert len(set(ids_of(first))) == 4
    assert ids_of(first)[0] == alone.token_ids
    assert ids_of(again) == ids_of(first)
    assert all(answer.token_ids == quiet for answer in beside[:-1])
    assert [end.index for end in sorted(beside[-1].finished, key=lambda end: end.index)] == [0, 1, 2, 3]
    assert sorted(beside[-1].token_ids) == sorted(i for ids in ids_of(first) for i in ids)
    assert again.usage.completion_tokens == 160
    assert again.usage.prompt_tokens == len(PROMPT)
    assert [choice.finished.usage.cached_tokens >= 32 for choice in first.choices[1:]] == [True] * 3


def test_a_stop_string_ends_only_its_choice(tiny: Stack) -> None:
    with Client(tiny.address) as client:
        free = client.generate_once(token_ids=PROMPT, n=4, **SEEDED)
        texts = [choice.text for choice in free.choices]
        stop = next(
            piece
            for start in range(3, len(texts[2]) - 2)
            if (piece := texts[2][start : start + 2]) and not any(piece in texts[i] for i in (0, 1, 3))
        )
        stopped = client.generate(token_ids=PROMPT, n=4, stop=stop, **SEEDED).result()
    for index in (0, 1, 3):
        assert stopped.choices[index].token_ids == free.choices[index].token_ids
        assert stopped.choices[index].finish_reason == "length"
    assert stopped.choices[2].matched == stop
    assert stopped.choices[2].text == texts[2][: texts[2].index(stop)]


def test_scores_of_each_choice_and_once_of_the_prompt(tiny: Stack) -> None:
    with Client(tiny.address) as client:
        answer = client.generate_once(token_ids=PROMPT, n=3, logprobs=2, prompt_logprobs=1, **SEEDED)
        alone = client.generate_once(token_ids=PROMPT, logprobs=2, prompt_logprobs=1, **SEEDED)
    assert len(answer.prompt_logprobs.tokens) == len(PROMPT)
    assert answer.prompt_logprobs == alone.prompt_logprobs
    assert answer.choices[0].logprobs == alone.choices[0].logprobs
    for choice in answer.choices:
        assert [score.token.token_id for score in choice.logprobs] == list(choice.token_ids)
        assert all(len(score.top) == 2 for score in choice.logprobs)


def test_killed_services_change_no_choice(tiny: Stack) -> None:
    """Worker, then scheduler killed under a request of four choices and a beam search."""
    long = SEEDED | {"max_tokens": 300}
    beams: dict[str, Any] = {"beam_width": 4, "n": 2, "max_tokens": 200, "ignore_eos": True}
    with Client(tiny.address) as client:
        wanted = ids_of(client.generate_once(token_ids=PROMPT, n=4, **long))
        best = ids_of(client.generate_once(token_ids=PROMPT, **beams))

        async def disturbed(service: str) -> list[Any]:
            asked = [request(PROMPT, n=4, **long), request(PROMPT, **beams)]
            tasks = asyncio.gather(*(collect(tiny.address, message) for message in asked))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(tiny.kill, service)
            return await tasks

        for service in ("worker", "scheduler"):
            sampled, searched = asyncio.run(disturbed(service))
            assert sampled == wanted, service
            assert searched == best, service
    tiny.wait_idle()


async def collect(address: str, message: pb.GenerateRequest) -> list[tuple[int, ...]]:
    """Ids of each choice."""
    found: list[list[int]] = [[] for _ in range(message.sampling.n)]
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        async for event in rpc.GenerationServiceStub(channel).Generate(message, timeout=120):
            if event.HasField("delta"):
                found[event.delta.index] += event.delta.token_ids
    return [tuple(ids) for ids in found]


def test_a_client_that_leaves_ends_all_choices_and_beams(tiny: Stack) -> None:
    with grpc.insecure_channel(tiny.address) as channel:
        stub = rpc.GenerationServiceStub(channel)
        for more in ({"n": 6, "temperature": 1.0}, {"beam_width": 6}):
            call = stub.Generate(request(PROMPT, max_tokens=1500, ignore_eos=True, **more))
            next(call)
            time.sleep(0.3)
            call.cancel()
            tiny.wait_idle()


def test_memory_is_flat(tiny: Stack) -> None:
    """A hundred requests of many choices and of beams leave nothing behind in any service."""
    asked = [
        request([10 + i % 50] * (10 + i % 40), max_tokens=16, **more)
        for i in range(50)
        for more in ({"n": 4, "temperature": 1.0}, {"beam_width": 4, "n": 2})
    ]
    sizes: dict[str, list[int]] = {name: [] for name in tiny.processes}
    for _ in range(3):
        asyncio.run(generate_all(tiny.address, asked, at_once=16))
        load = tiny.wait_idle()
        assert load.blocks.free + load.blocks.cached == load.blocks.total
        for name in sizes:
            sizes[name].append(tiny.resident_bytes(name))
    for name, found in sizes.items():  # the allocator grows now and then; a leak grows every time
        assert min(after - before for before, after in pairwise(found)) < 2 * MIB, (name, found)
