"""bf16 is as close to fp32 as transformers' own bf16 is, and differs first only where fp32 was undecided."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from support.door import Answer, generate_all, request
from support.stack import Stack
from support.worker_model import full_logits, load_default

NEW_TOKENS = 24
UNDECIDED = 0.3
"""Gap between the two best logits in fp32 below which bf16 may pick the other."""
SHARE = 1.25
"""Most that our error may be of transformers' own."""
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "Photosynthesis is the process by which",
    "To make bread you need flour,",
    "def fibonacci(n):\n",
    "The difference between weather and climate is that",
]


@pytest.fixture(scope="module")
def reference(default_model: str) -> Any:
    """transformers in fp32."""
    from support.reference import load_reference

    return load_reference(default_model)


@pytest.fixture(scope="module")
def bf16_answers(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Answer]]:
    """The prompts' greedy continuations through a stack that computes in bf16."""
    running = Stack(default_model, tmp_path_factory.mktemp("bf16"), {"worker": {"dtype": "bf16"}})
    running.start()
    try:
        running.wait_ready()
        messages = [request(text, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True) for text in PROMPTS]
        yield asyncio.run(generate_all(running.address, messages))
    finally:
        running.stop()


def test_first_difference_is_where_fp32_was_undecided(reference: Any, bf16_answers: list[Answer]) -> None:
    import torch

    for text, answer in zip(PROMPTS, bf16_answers, strict=True):
        prompt = reference.encode(text)
        with torch.inference_mode():
            logits = reference.model(torch.tensor([prompt + answer.token_ids])).logits[0]
        ours = torch.tensor(answer.token_ids)
        logits = logits[len(prompt) - 1 : -1]
        differs = (logits.argmax(-1) != ours).nonzero()
        if len(differs):
            first = int(differs[0])
            best, second = logits[first].topk(2).values.tolist()
            assert best - second < UNDECIDED, (text, first, best - second)


def test_logit_error_is_that_of_transformers(
    default_model: str, reference: Any, bf16_answers: list[Answer]
) -> None:
    """Root mean square over all positions and tokens of all texts."""
    import torch

    from support.reference import load_reference

    theirs_model = load_reference(default_model, "bfloat16")
    ours_model = load_default(default_model, "bf16")
    ours = theirs = 0.0
    for text, answer in zip(PROMPTS, bf16_answers, strict=True):
        ids = reference.encode(text) + answer.token_ids
        with torch.inference_mode():
            exact = reference.model(torch.tensor([ids])).logits[0]
            theirs += float(
                (theirs_model.model(torch.tensor([ids])).logits[0].float() - exact).square().sum()
            )
            ours += float((full_logits(ours_model, ids) - exact).square().sum())
    assert (ours / theirs) ** 0.5 <= SHARE, (ours / theirs) ** 0.5
