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
from support.door import generate, generate_all, request
from support.stack import Stack

MODEL = "gemma3-270m"
PROMPTS: dict[str, list[int]] = {
    "The capital of France is": [2, 818, 5279, 529, 7001, 563],
    "Once upon a time, in a village by the sea,": [
        2, 14946, 3324, 496, 990, 236764, 528, 496, 9744, 684, 506, 5442, 236764,
    ],
    "def fibonacci(n):\n": [2, 2063, 10779, 78113, 236769, 236749, 1473, 107],
    "The three primary colours are": [2, 818, 1806, 5905, 22640, 659],
    "In 1969, the first humans": [2, 902, 236743, 236770, 236819, 236825, 236819, 236764, 506, 1171, 14464],
    "Photosynthesis is the process by which": [2, 49660, 30445, 563, 506, 1657, 684, 837],
    "1, 1, 2, 3, 5, 8,": [
        2, 236770, 236764, 236743, 236770, 236764, 236743, 236778, 236764, 236743, 236800, 236764,
        236743, 236810, 236764, 236743, 236828, 236764,
    ],
    "日本の首都は": [2, 76444, 120211, 237048],
    "<html>\n<head>\n<title>": [2, 217, 107, 236820, 2834, 236813, 107, 236820, 3250, 236813],
    "A good night's sleep is important because": [
        2, 236776, 1535, 3446, 236789, 236751, 6745, 563, 2132, 1547,
    ],
}  # fmt: skip
"""Texts, and their ids as transformers reads the file's vocabulary."""
NEW_TOKENS = 64
EOS, END_OF_TURN = 1, 106


@pytest.fixture(scope="module")
def path() -> Path:
    return pull(MODEL).weights[0]


@pytest.fixture(scope="module")
def gemma(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    flags = {"worker": {"dtype": "fp32", "num_threads": 2, "max_model_len": 1024}}
    running = Stack(MODEL, tmp_path_factory.mktemp("gemma"), flags)
    running.start()
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def test_ten_prompts_of_64_tokens_equal_transformers(gemma: Stack, path: Path) -> None:
    from support.gemma_reference import continuation, load_gemma

    messages = [request(text, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True) for text in PROMPTS]
    answers = asyncio.run(generate_all(gemma.address, messages))
    model = load_gemma(path)
    for (text, prompt), answer in zip(PROMPTS.items(), answers, strict=True):
        assert len(answer.token_ids) == NEW_TOKENS
        assert answer.token_ids == continuation(model, prompt, answer.token_ids), text


def test_its_tokenizer_and_ends(gemma: Stack) -> None:
    """BOS comes first, the end of a turn is an end, and a base model has no chat template."""
    with grpc.insecure_channel(gemma.address) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        for text, ids in PROMPTS.items():
            assert list(stub.Encode(tok.EncodeRequest(text=text)).token_ids) == ids
            assert stub.Decode(tok.DecodeRequest(token_ids=ids)).text == text
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
