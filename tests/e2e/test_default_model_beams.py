"""Beam search of the default model finds the very sequences that transformers finds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hundredfold import Client
from support.answers_kept import BEAM_TOKENS, BEAMS, KeptAnswer, kept_answers
from support.beam_margin import narrowest_choice, summed_log_probability
from support.prompts import PROMPTS
from support.reference import load_reference
from support.stack import Stack

ROUNDING = 1e-4
"""What fp32 leaves open of a sum of 32 log probabilities: transformers' and ours differ by up to 8e-5."""


@pytest.fixture(scope="module")
def expected(default_model: str) -> dict[str, KeptAnswer]:
    """What transformers finds after each prompt: num_beams=4, do_sample=False, length_penalty=1, in fp32."""
    return {kept.text: kept for kept in kept_answers("smollm2-135m", default_model)}


@pytest.fixture(scope="module")
def answers(stack: Stack) -> dict[str, Any]:
    """What the door says, several searches beside each other."""
    asked = {"beam_width": BEAMS, "max_tokens": BEAM_TOKENS, "repetition_penalty": 1.0, "timeout": 280}
    with Client(stack.address) as client, ThreadPoolExecutor(10) as pool:
        return dict(
            zip(PROMPTS, pool.map(lambda text: client.generate_once(text, **asked), PROMPTS), strict=True)
        )


@pytest.mark.parametrize("text", PROMPTS)
def test_it_finds_what_transformers_finds(
    answers: dict[str, Any],
    expected: dict[str, KeptAnswer],
    default_model: str,
    text: str,
) -> None:
    """20 prompts of 32 tokens in fp32: ids, score and text.

    Beams apart by less than fp32's rounding may be kept either way: after one prompt the last beam kept and
    the first one dropped are once 3.2e-5 apart in float64. No other prompt needs it. On AVX2 the native
    kernels keep the beam there that transformers keeps, and so do the reference ones.
    """
    kept, answer = expected[text], answers[text]
    found = list(answer.token_ids)
    if found == kept.beam:
        score, decoded = kept.beam_score, kept.beam_text
    else:
        reference = load_reference(default_model)
        assert narrowest_choice(reference.model, kept.prompt, BEAMS, BEAM_TOKENS) < ROUNDING
        score = summed_log_probability(reference.model, kept.prompt, found) / len(found)
        decoded = reference.decode(found)
    assert answer.choices[0].beam_score == pytest.approx(score, abs=2e-5)
    assert answer.text == decoded
