"""bf16 is as close to fp32 as transformers' own bf16 is, and differs first only where fp32 was undecided."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from support.answers_kept import kept_answers
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
    """transformers in fp32, over the file's numbers."""
    from support.llama_checkpoints import llama_from_gguf

    return llama_from_gguf(Path(default_model))


@pytest.fixture(scope="module")
def prompts(default_model: str) -> dict[str, list[int]]:
    """The ids of each prompt, as transformers encodes it."""
    kept = {answer.text: answer.prompt for answer in kept_answers("smollm2-135m", default_model)}
    return {text: kept[text] for text in PROMPTS}


@pytest.fixture(scope="module")
def bf16_answers(default_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Answer]]:
    """The prompts' greedy continuations through a stack that computes in bf16."""
    flags = {"worker": {"dtype": "bf16", "num_kv_blocks": 64, "warm_up": False}}
    running = Stack(default_model, tmp_path_factory.mktemp("bf16"), flags)
    running.start()
    try:
        running.wait_ready()
        messages = [request(text, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True) for text in PROMPTS]
        yield asyncio.run(generate_all(running.address, messages))
    finally:
        running.stop()


def test_first_difference_is_where_fp32_was_undecided(
    reference: Any, prompts: dict[str, list[int]], bf16_answers: list[Answer]
) -> None:
    import torch

    for (text, prompt), answer in zip(prompts.items(), bf16_answers, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer.token_ids])).logits[0]
        ours = torch.tensor(answer.token_ids)
        logits = logits[len(prompt) - 1 : -1]
        differs = (logits.argmax(-1) != ours).nonzero()
        if len(differs):
            first = int(differs[0])
            best, second = logits[first].topk(2).values.tolist()
            assert best - second < UNDECIDED, (text, first, best - second)


def test_logit_error_is_that_of_transformers(
    default_model: str, reference: Any, prompts: dict[str, list[int]], bf16_answers: list[Answer]
) -> None:
    """Root mean square over all positions and tokens of all texts."""
    import torch

    theirs_model = deepcopy(reference).to(torch.bfloat16)
    theirs_model.model.rotary_emb = deepcopy(reference.model.rotary_emb)  # stays fp32 when it is loaded, too
    ours_model = load_default(default_model, "bf16")
    ours = theirs = 0.0
    for prompt, answer in zip(prompts.values(), bf16_answers, strict=True):
        ids = prompt + answer.token_ids
        with torch.inference_mode():
            exact = reference(torch.tensor([ids])).logits[0]
            theirs += float((theirs_model(torch.tensor([ids])).logits[0].float() - exact).square().sum())
            ours += float((full_logits(ours_model, ids) - exact).square().sum())
    print(f"our error is {(ours / theirs) ** 0.5:.3f} of transformers' own")
    assert (ours / theirs) ** 0.5 <= SHARE, (ours / theirs) ** 0.5
