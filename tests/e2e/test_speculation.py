"""The default model, speculating by n-grams: the same answers in fewer steps, and what it says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from hundredfold.v1 import control_pb2, control_pb2_grpc
from hundredfold.v1 import generation_pb2 as pb
from support.door import Answer, generate_all, request
from support.drafts import draft_until_accepted
from support.stack import Stack

POEM = "The cat sat on the mat. The dog ran to the door. The bird flew over the house. "
SENT_AHEAD = 3
"""Steps of a request that bring nothing: plans made before its end was known."""
COPIED = POEM * 4
"""A text that goes on as it began: what follows is in the prompt."""


@pytest.fixture(scope="module")
def speculating(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """As the shared stack, and with drafts."""
    flags = {"worker": {"dtype": "fp32", "num_threads": 2, "speculative": "ngram"}}
    running = Stack(default_model, tmp_path_factory.mktemp("speculating"), flags)
    running.start()
    try:
        running.wait_ready(240)
        yield running
    finally:
        codes = running.stop()
    assert set(codes.values()) == {0}, codes


def requests() -> list[pb.GenerateRequest]:
    """Greedy and seeded, with all that changes logits, and one that is told its scores."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "seed": 3, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.1, "min_tokens": 20},
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.0, "stop": ["over the"]},
    ]
    return [request(COPIED, max_tokens=48, ignore_eos=True, **kind) for kind in kinds]


def answers(stack: Stack, at_once: int) -> list[Answer]:
    return asyncio.run(generate_all(stack.address, requests(), at_once=at_once))


@pytest.mark.parametrize("at_once", [1, 5])
def test_the_same_answers_in_fewer_steps(stack: Stack, speculating: Stack, at_once: int) -> None:
    """Reports 45, 47: a copy-heavy prompt, alone and with others."""
    before = speculating.load().totals
    want, got = answers(stack, 5), answers(speculating, at_once)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in want]
    assert [answer.text for answer in got] == [answer.text for answer in want]
    for mine, theirs in zip(got, want, strict=True):
        assert [one.token.token_id for one in mine.logprobs] == [
            one.token.token_id for one in theirs.logprobs
        ]
        scores = [[one.token.logprob for one in answer.logprobs] for answer in (mine, theirs)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)
        assert mine.finished[0].usage.completion_tokens == theirs.finished[0].usage.completion_tokens
        assert mine.finished[0].reason == theirs.finished[0].reason
    after = speculating.load().totals
    drafted, accepted, steps, output = (
        after[name] - before[name] for name in ("drafted_tokens", "accepted_tokens", "steps", "output_tokens")
    )
    assert accepted <= drafted
    # Each one spares a step. How many are tried is the cost model's to say, and this machine's.
    if at_once == 1 and accepted > SENT_AHEAD * len(want):
        assert steps < output
    draft_until_accepted(speculating, before["accepted_tokens"])
    speculating.wait_idle()


def test_it_is_told_in_info(speculating: Stack) -> None:
    """Which strategy runs, and that its plugin is loaded."""
    with grpc.insecure_channel(speculating.address_of("worker")) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        worker = stub.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=10).services[0]
    chosen = {selection.subject: selection.chosen for selection in worker.runtime.selections}
    assert chosen["speculative"] == "ngram"
    states = {(plugin.group, plugin.name): plugin.state for plugin in worker.plugins}
    assert states["hundredfold.speculative", "ngram"] == "loaded"
