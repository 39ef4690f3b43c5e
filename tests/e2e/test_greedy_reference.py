"""The default model through the door says what transformers says, token for token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.door import generate_all, request
from support.prompts import PROMPTS
from support.reference import greedy_ids, load_reference
from support.stack import Stack

NEW_TOKENS = 64


@pytest.fixture(scope="module")
def reference(default_model: str) -> Any:
    """transformers in fp32 over the same dequantized weights."""
    return load_reference(default_model)


def test_twenty_prompts_of_64_tokens_equal_transformers(stack: Stack, reference: Any) -> None:
    messages = [request(text, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True) for text in PROMPTS]
    answers = asyncio.run(generate_all(stack.address, messages))
    for text, answer in zip(PROMPTS, answers, strict=True):
        prompt = reference.encode(text)
        assert answer.started is not None
        assert answer.started.prompt_tokens == len(prompt), text
        assert len(answer.token_ids) == NEW_TOKENS
        assert answer.token_ids == greedy_ids(reference.model, prompt, answer.token_ids), text
        assert answer.text == reference.decode(answer.token_ids), text
