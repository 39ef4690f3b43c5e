"""A windowed model in the engine: what its tables name before the window is another's, and is never read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.slots import EngineLimits
from hundredfold_worker.sampling.params import SamplingParams
from support.model_rows import load
from support.poison import poison
from support.random_checkpoints import random_ids, random_model, reference_logits
from support.step_driver import StepDriver

WINDOW, BLOCK, NEW_TOKENS = 20, 16, 50
GREEDY = SamplingParams(max_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("windowed")
    random_model("Mistral", sliding_window=WINDOW).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("attention", ["torch", "cpu"])
@pytest.mark.parametrize("chunk", [200, 13])
def test_blocks_before_the_window_may_hold_anything(checkpoint: Path, attention: str, chunk: int) -> None:
    """Here they hold NaN as soon as the scheduler may give them away; two sequences, whole or in chunks."""
    model = load(checkpoint, attention=attention, block_size=BLOCK)
    limits = EngineLimits(
        max_num_seqs=2,
        max_num_batched_tokens=256,
        max_model_len=128,
        block_size=BLOCK,
        num_blocks=17,
        vocab_size=model.vocab_size,
        sliding_window=model.description.sliding_window,
    )
    cache = model.cache_planner.allocate(limits.num_blocks)
    for layer in cache.layers:
        poison(layer)
    never_written = 16
    driver = StepDriver(Engine(model, cache, limits), chunk)
    prompts = [random_ids(70, 1), random_ids(33, 2)]
    tracks = [driver.add(slot, prompt, GREEDY) for slot, prompt in enumerate(prompts)]
    while not all(track.over for track in tracks):
        driver.run_step()
        for slot, track in enumerate(tracks):
            unseen = driver.blocks_of(slot)[: max(0, track.computed - WINDOW + 1) // BLOCK]
            gone = torch.tensor(unseen)
            cache.copy_blocks(torch.full_like(gone, never_written), gone)
    reference = random_model("Mistral", sliding_window=WINDOW)
    for prompt, track in zip(prompts, tracks, strict=True):
        assert track.failure is None
        assert len(track.output) == NEW_TOKENS
        logits = reference_logits(reference, prompt + track.output[:-1])
        assert track.output == logits[len(prompt) - 1 :].argmax(-1).tolist()


def test_only_a_model_whose_every_layer_has_a_window_says_so(checkpoint: Path, tmp_path: Path) -> None:
    assert load(checkpoint).description.sliding_window == WINDOW
    random_model("Gemma3").save_pretrained(tmp_path)
    assert load(tmp_path).description.sliding_window is None
