"""The default model through the door says what transformers says, token for token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.door import generate_all, request
from support.stack import Stack

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first humans",
    "Photosynthesis is the process by which",
    "1, 1, 2, 3, 5, 8,",
    "The quick brown fox",
    "To make bread you need flour,",
    "import numpy as np\n\n# compute the mean of each column\n",
    "Shakespeare wrote many plays, among them",
    "The difference between weather and climate is that",
    "Q: What is the largest planet?\nA:",
    "<html>\n<head>\n<title>",
    "A good night's sleep is important because",
    "The river flows from the mountains to",
    "Mathematics is the study of",
    "My favourite season is autumn, when",
]
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def reference(default_model: str) -> Any:
    """transformers in fp32 over the same dequantized weights."""
    from support.reference import load_reference

    return load_reference(default_model)


def test_twenty_prompts_of_64_tokens_equal_transformers(stack: Stack, reference: Any) -> None:
    """By induction: each id is the argmax of the reference's logits over everything before it."""
    import torch

    messages = [request(text, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True) for text in PROMPTS]
    answers = asyncio.run(generate_all(stack.address, messages))
    for text, answer in zip(PROMPTS, answers, strict=True):
        prompt = reference.encode(text)
        assert answer.started is not None
        assert answer.started.prompt_tokens == len(prompt), text
        assert len(answer.token_ids) == NEW_TOKENS
        with torch.inference_mode():
            logits = reference.model(torch.tensor([prompt + answer.token_ids])).logits[0]
        expected = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
        assert answer.token_ids == expected, text
        assert answer.text == reference.decode(answer.token_ids), text
