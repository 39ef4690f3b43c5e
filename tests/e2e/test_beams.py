"""Beam search through real services finds the very sequences that transformers finds, over TINY."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import grpc
import pytest

from hundredfold import Client
from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc
from support.beam_reference import search
from support.stack import Stack

BEAMS = 4


@pytest.fixture(scope="module")
def tiny(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """TINY in fp32, small blocks: many are shared, and many copied in part."""
    flags = {"worker": {"dtype": "fp32", "block_size": 16, "max_num_seqs": 12, "num_kv_blocks": 140}}
    with Stack(tiny_model, tmp_path_factory.mktemp("beams"), flags).serving() as running:
        yield running


@cache
def tiny_reference(model: str) -> Any:
    """TINY in transformers, without ids that its tokenizer does not know: none is generated here."""
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    known = Tokenizer.from_file(f"{model}/tokenizer.json").get_vocab_size()

    def mask(_module: Any, _inputs: Any, logits: Any) -> None:
        logits[..., known:] = -float("inf")

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval()
    loaded.lm_head.register_forward_hook(mask)
    return loaded


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -0.5])
@pytest.mark.parametrize(("width", "more_stops"), [(4, []), (2, [7, 9]), (8, list(range(100, 160)))])
def test_tiny_finds_the_same_beams(
    tiny: Stack,
    tiny_model: str,
    width: int,
    more_stops: list[int],
    length_penalty: float,
    early_stopping: bool,
) -> None:
    """Ids, order, ends and scores, with stop ids that come early, often or never."""
    prompts = [list(range(40, 40 + length)) for length in (3, 16, 45)]
    with Client(tiny.address) as client:
        asked = {
            "beam_width": width,
            "n": width,
            "max_tokens": 24,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
            "stop_token_ids": more_stops,
        }
        with ThreadPoolExecutor(3) as pool:  # three groups beside each other, on seats for one or two
            answers = list(pool.map(lambda ids: client.generate_once(token_ids=ids, **asked), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        ((outputs, scores),) = search(
            tiny_reference(tiny_model),
            [prompt],
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=24,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_id=[2, *more_stops],
        )
        assert [list(choice.token_ids) for choice in answer.choices] == outputs
        for choice, output, score in zip(answer.choices, outputs, scores, strict=True):
            assert choice.finished.beam_score == pytest.approx(score, rel=1e-4)
            stopped = output[-1] in {2, *more_stops}
            assert choice.finish_reason == ("stop" if stopped else "length")
            assert choice.matched == (output[-1] if stopped else None)


def test_penalties_are_added_to_log_probabilities(tiny: Stack, tiny_model: str) -> None:
    """As transformers does: its processors see log probabilities in a beam search."""
    prompt = list(range(40, 60))
    with Client(tiny.address) as client:
        answer = client.generate_once(
            token_ids=prompt, beam_width=BEAMS, n=2, max_tokens=20, repetition_penalty=1.3, min_tokens=6
        )
    ((outputs, _),) = search(
        tiny_reference(tiny_model),
        [prompt],
        num_beams=BEAMS,
        num_return_sequences=2,
        max_new_tokens=20,
        min_new_tokens=6,
        repetition_penalty=1.3,
        eos_token_id=[2],
    )
    assert [list(choice.token_ids) for choice in answer.choices] == outputs


def test_a_single_beam_is_greedy(tiny: Stack) -> None:
    with Client(tiny.address) as client:
        beam = client.generate_once(token_ids=[40, 41, 42], beam_width=1, max_tokens=20)
        greedy = client.generate_once(token_ids=[40, 41, 42], temperature=0, max_tokens=20)
    assert beam.token_ids == greedy.token_ids


@pytest.mark.parametrize("held", [5, 20])
def test_a_resumed_search_has_its_score(tiny: Stack, held: int) -> None:
    """Also for a client that holds all of the answer but its end."""
    sampling = pb.SamplingParams(beam_width=BEAMS, max_tokens=20, ignore_eos=True)
    prompt = pb.TokenIds(ids=[40, 41, 42])
    with grpc.insecure_channel(tiny.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        (whole,) = stub.GenerateOnce(
            pb.GenerateOnceRequest(request=pb.GenerateRequest(token_ids=prompt, sampling=sampling)),
            timeout=60,
        ).choices
        ids = list(whole.content.token_ids)
        received = pb.ReceivedChoice(token_ids=ids[:held])
        again = pb.GenerateRequest(token_ids=prompt, sampling=sampling, resume=pb.Resume(choices=[received]))
        responses = list(stub.Generate(again, timeout=60))
    assert [i for response in responses for i in response.delta.token_ids] == ids[held:]
    assert responses[-1].finished.HasField("beam_score")
    assert responses[-1].finished.beam_score == pytest.approx(whole.finished.beam_score, rel=1e-4)
