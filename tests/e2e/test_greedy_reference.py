"""The default model through the door says what transformers says, token for token."""

from __future__ import annotations

import asyncio

from support.answers_kept import GREEDY_TOKENS, kept_answers
from support.door import generate_all, request
from support.stack import Stack


def test_twenty_prompts_of_64_tokens_equal_transformers(stack: Stack, default_model: str) -> None:
    """In fp32, over the same dequantized weights."""
    kept = kept_answers("smollm2-135m", default_model)
    assert len(kept) == 20
    asked = [request(one.text, temperature=0, max_tokens=GREEDY_TOKENS, ignore_eos=True) for one in kept]
    answers = asyncio.run(generate_all(stack.address, asked))
    for one, answer in zip(kept, answers, strict=True):
        assert answer.started is not None
        assert answer.started.prompt_tokens == len(one.prompt), one.text
        assert answer.token_ids == one.greedy, one.text
        assert answer.text == one.greedy_text, one.text
