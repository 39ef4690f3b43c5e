"""A model whose every layer has a window, through real services: it says what transformers says, and holds no
more blocks than its window needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from hundredfold import Client
from support.random_checkpoints import random_ids, random_model
from support.reference import greedy_ids
from support.stack import Stack
from support.tiny_model import write_tokenizer

WINDOW = 40
BLOCK = 16
CHUNK = 32
PLANS = 2
MOST = -(-(WINDOW + PLANS * CHUNK) // BLOCK) + 1
"""Blocks of one sequence: what its window sees, what plans in flight add, and one that is seen in part."""

PROMPT = random_ids(210)
NEW_TOKENS = 150
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistral")
    write_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def mistral(directory: Path) -> Any:
    """With the ids that its tokenizer knows: a door generates no others."""
    known = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab_size()
    model = random_model("Mistral", vocab_size=known, max_position_embeddings=1024, sliding_window=WINDOW)
    model.save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def stack(mistral: Any, directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    worker = {"dtype": "fp32", "block_size": BLOCK, "num_kv_blocks": 100, "max_num_batched_tokens": CHUNK}
    flags = {"worker": worker | {"max_num_seqs": 8}, "scheduler": {"max_plans_in_flight": PLANS}}
    with Stack(str(directory), tmp_path_factory.mktemp("windows"), flags).serving() as running:
        yield running


def check_greedy(model: Any, prompt: list[int], output: list[int]) -> None:
    assert len(output) == NEW_TOKENS
    assert output == greedy_ids(model, prompt, output)


def blocks_used(stack: Stack, stream: Any) -> list[int]:
    """Blocks in use, looked at whenever something arrives."""
    return [stack.load().blocks.used for _ in stream]


def test_windows_bound_the_blocks_and_not_the_answer(stack: Stack, mistral: Any) -> None:
    """A prompt longer than the window, and an answer that leaves the prompt behind."""
    with Client(stack.address) as client:
        stream = client.generate(token_ids=PROMPT, **GREEDY)
        used = blocks_used(stack, stream)
    check_greedy(mistral, PROMPT, list(stream.answer.token_ids))
    assert WINDOW // BLOCK <= max(used) <= MOST < len(PROMPT) // BLOCK
    stack.wait_idle()


def test_what_windows_gave_back_is_found_again(stack: Stack, mistral: Any) -> None:
    """A prefix hit on blocks that their first owner let go while it ran."""
    prompt = [3, *PROMPT]
    with Client(stack.address) as client:
        first = client.generate_once(token_ids=prompt, **GREEDY)
        longer = [*prompt, *first.token_ids[:20]]
        again = client.generate_once(token_ids=longer, **GREEDY)
    assert again.usage.cached_tokens == len(longer) // BLOCK * BLOCK
    check_greedy(mistral, prompt, list(first.token_ids))
    check_greedy(mistral, longer, list(again.token_ids))
    stack.wait_idle()


def test_choices_have_a_window_each(stack: Stack) -> None:
    """Two choices from one prompt hold two windows, and each says what it says when memory is plenty."""
    sampled = GREEDY | {"temperature": 1.0, "seed": 11}
    prompt = [5, *PROMPT]
    with Client(stack.address) as client:
        alone = client.generate_once(token_ids=prompt, **sampled)
        stream = client.generate(token_ids=prompt, n=2, **sampled)
        used = blocks_used(stack, stream)
    first, second = stream.answer.choices
    assert first.token_ids == alone.token_ids != second.token_ids
    assert max(used) <= 2 * MOST + len(prompt) // BLOCK  # the second begins with all of the first's prompt
    assert max(used[len(used) // 2 :]) <= 2 * MOST
    load = stack.wait_idle()
    assert load.blocks.free + load.blocks.cached == load.blocks.total
