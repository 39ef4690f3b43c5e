"""Trial steps: within every limit, the largest ones included, and without a trace."""

from __future__ import annotations

import pytest
import torch

from hundredfold.errors import StartError
from hundredfold_worker.engine.slots import EngineLimits
from hundredfold_worker.trial import Trial
from support.step_driver import StepDriver
from support.toy_model import ToyModel


def limits(**changes: int) -> EngineLimits:
    values = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "max_model_len": 256,
        "block_size": 16,
        "num_blocks": 1,
        "vocab_size": 64,
    }
    return EngineLimits(**values | changes)


def test_the_largest_steps_are_tried() -> None:
    sizes: list[tuple[int, int]] = []
    model = ToyModel(strict=False, tamper=lambda ids, logits: sizes.append((len(ids), len(logits))))
    trial = Trial(model, limits())
    assert trial.measure() >= 0
    assert max(tokens for tokens, _ in sizes) == 128
    assert max(rows for _, rows in sizes) == 8 + 64
    trial.warm_up()
    assert {tokens for tokens, _ in sizes[2:]} == {16, 1, 2, 4, 8}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_seqs": 1, "max_num_batched_tokens": 1},
        {"max_num_seqs": 64, "max_num_batched_tokens": 16},
        {"max_model_len": 2},
        {"max_model_len": 3, "max_num_batched_tokens": 4096},
        {"max_num_seqs": 2, "max_num_batched_tokens": 3},
        {"block_size": 256, "max_num_batched_tokens": 32},
    ],
)
def test_odd_limits(changes: dict[str, int]) -> None:
    model = ToyModel(strict=False, block_size=changes.get("block_size", 16))
    trial = Trial(model, limits(**changes))
    trial.measure()
    trial.warm_up()


def test_a_trial_leaves_no_trace(make_driver) -> None:
    """Neither in the cache nor in anyone's noise."""
    from hundredfold_worker.sampling.params import SamplingParams

    wanted = SamplingParams(max_tokens=20, temperature=1.0, seed=1)

    def run(driver: StepDriver) -> list[int]:
        track = driver.add(0, [1, 2, 3], wanted)
        driver.run()
        return track.output

    want = run(make_driver())
    model = ToyModel()
    driver = make_driver(model)
    before = driver.engine._cache.layers[0].values.clone()
    model.strict = False
    trial = Trial(model, driver.engine.limits)
    trial.measure()
    trial.warm_up()
    model.strict = True
    assert torch.equal(driver.engine._cache.layers[0].values, before)
    assert run(driver) == want


def test_a_step_that_cannot_fit_ends_the_start() -> None:
    def refuse(ids: torch.Tensor, logits: torch.Tensor) -> None:
        raise MemoryError

    with pytest.raises(StartError, match=r"a step of 128 tokens in 8 sequences .* max_num_batched_tokens"):
        Trial(ToyModel(strict=False, tamper=refuse), limits()).measure()


def test_steps_are_timed_by_their_positions() -> None:
    """One row with drafts for the small ones, rows of one token beyond; as far as the limits go."""
    sizes: list[int] = []
    model = ToyModel(strict=False, tamper=lambda ids, logits: sizes.append(len(logits)))
    positions, seconds = Trial(model, limits()).step_seconds(3)
    assert positions == [1, 2, 3, 4, 6, 8]
    assert len(seconds) == 6
    assert all(found > 0 for found in seconds)
    assert set(sizes) == set(positions)
