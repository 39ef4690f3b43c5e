"""Gemma 3 270M (Q4_K_M) by its catalog name through the door says what transformers says, token for token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from hundredfold.models import pull
from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc, tokenizer_pb2_grpc
from hundredfold.v1 import tokenizer_pb2 as tok
from support.answers_kept import GREEDY_TOKENS, KeptAnswer, kept_answers
from support.door import generate, generate_all, request
from support.stack import Stack

MODEL = "gemma3-270m"
EOS, END_OF_TURN = 1, 106


@pytest.fixture(scope="module")
def path() -> Path:
    return pull(MODEL).weights[0]


@pytest.fixture(scope="module")
def kept(path: Path) -> list[KeptAnswer]:
    """What transformers says."""
    return kept_answers(MODEL, path)


@pytest.fixture(scope="module")
def gemma(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    worker = {"dtype": "fp32", "num_threads": 2, "max_model_len": 1024, "num_kv_blocks": 128}
    flags = {"worker": worker | {"warm_up": False}}
    running = Stack(MODEL, tmp_path_factory.mktemp("gemma"), flags)
    running.start()
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def test_ten_prompts_of_64_tokens_equal_transformers(gemma: Stack, kept: list[KeptAnswer]) -> None:
    messages = [request(one.text, temperature=0, max_tokens=GREEDY_TOKENS, ignore_eos=True) for one in kept]
    answers = asyncio.run(generate_all(gemma.address, messages))
    assert len(kept) == 10
    assert [answer.token_ids for answer in answers] == [one.greedy for one in kept]


def test_its_tokenizer_and_ends(gemma: Stack, kept: list[KeptAnswer]) -> None:
    """BOS comes first, the end of a turn is an end, and a base model has no chat template."""
    with grpc.insecure_channel(gemma.address) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        for one in kept:
            assert list(stub.Encode(tok.EncodeRequest(text=one.text)).token_ids) == one.prompt
            assert stub.Decode(tok.DecodeRequest(token_ids=one.prompt)).text == one.text
        turns = pb.ChatInput(messages=[pb.ChatMessage(role="user", content="hi")])
        stream = generation_pb2_grpc.GenerationServiceStub(channel).Generate(pb.GenerateRequest(chat=turns))
        with pytest.raises(grpc.RpcError, match="chat template") as caught:
            list(stream)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    for end in (EOS, END_OF_TURN):
        ended = generate(
            gemma.address, request([2, 818], temperature=0, max_tokens=4, logit_bias={end: 100.0})
        )
        assert ended.token_ids == [end]
        assert ended.text == ""
        assert ended.finished[0].reason == pb.FINISH_REASON_STOP
