"""The noise: distribution, independence, and that it is a function of its key alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hundredfold_worker.sampling.noise import (
    bits,
    bits_tensor,
    exponential,
    exponential_tensor,
    row_keys,
    spread,
)

N = 200_000


def noise_bits(seed: int, choice: int, position: int, ids: np.ndarray) -> np.ndarray:
    keys = row_keys(*(np.array([value], dtype=np.uint64) for value in (seed, choice, position)))
    return bits(keys[0, 0], keys[0, 1], spread(ids))


def chi_square(observed: np.ndarray, expected: float) -> float:
    """Statistic in standard deviations from its mean; beyond 5 is a fault, not chance."""
    freedom = observed.size - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


# Along what 200,000 draws are taken: tokens of one position, positions of one token, seeds of one token.
AXES = {
    "tokens": lambda: noise_bits(1, 0, 0, np.arange(N)),
    "positions": lambda: _along("position"),
    "seeds": lambda: _along("seed"),
    "large seeds": lambda: _along("large seed"),
    "choices": lambda: _along("choice"),
}


def _along(axis: str) -> np.ndarray:
    run = np.arange(N, dtype=np.uint64)
    fixed = np.zeros(N, dtype=np.uint64)
    seeds, choices, positions = fixed, fixed, fixed
    match axis:
        case "position":
            positions = run
        case "seed":
            seeds = run
        case "large seed":
            seeds = run * np.uint64(1 << 44)
        case "choice":
            choices = run
    keys = row_keys(seeds, choices, positions)
    return bits(keys[:, 0], keys[:, 1], np.broadcast_to(spread(np.array([17])), (N,)))


@pytest.mark.parametrize("axis", AXES)
def test_bits_are_uniform(axis: str) -> None:
    drawn = AXES[axis]()
    for shift in (24, 16, 8, 0):  # each byte, the last ones matter for the tail
        counts = np.bincount((drawn >> np.uint32(shift)) & 255, minlength=256)
        assert abs(chi_square(counts, N / 256)) < 5, shift


@pytest.mark.parametrize("axis", AXES)
def test_noise_is_exponential(axis: str) -> None:
    """Kolmogorov-Smirnov; 1.95 / sqrt(N) is passed by chance once in 1,000."""
    drawn = np.sort(exponential(AXES[axis]()))
    theory = -np.expm1(-drawn)
    steps = np.arange(1, N + 1) / N
    assert np.abs(theory - steps).max() < 1.95 / np.sqrt(N)


@pytest.mark.parametrize("axis", AXES)
def test_neighbours_along_an_axis_are_independent(axis: str) -> None:
    drawn = AXES[axis]()
    for distance in (1, 2, 64, 1024):
        first, second = drawn[:-distance] >> np.uint32(28), drawn[distance:] >> np.uint32(28)
        counts = np.bincount(first * 16 + second, minlength=256)
        assert abs(chi_square(counts, first.size / 256)) < 5, distance


def test_positions_and_seeds_share_nothing() -> None:
    """Noise of the same tokens under keys that differ in one bit, or have seed and position swapped."""
    ids = np.arange(N)
    base = noise_bits(5, 0, 9, ids)
    for other in ((4, 0, 9), (5, 1, 9), (5, 0, 8), (9, 0, 5), (5, 9, 0), (5 | 1 << 63, 0, 9)):
        drawn = noise_bits(*other, ids)
        counts = np.bincount((base >> np.uint32(28)) * 16 + (drawn >> np.uint32(28)), minlength=256)
        assert abs(chi_square(counts, N / 256)) < 5, other
        assert (base == drawn).sum() < 5


def test_least_of_many_is_where_it_should_be() -> None:
    """The winner of a race decides; its tail must not be thin: n times the least of n is exponential."""
    least = np.array([exponential(noise_bits(3, 0, p, np.arange(5000))).min() for p in range(400)])
    scaled = np.sort(5000 * least)
    assert np.abs(-np.expm1(-scaled) - np.arange(1, 401) / 400).max() < 1.95 / np.sqrt(400)


def test_extremes_are_finite() -> None:
    drawn = exponential(np.array([0, 1, 2**32 - 1], dtype=np.uint32))
    assert drawn[0] == pytest.approx(2.0**-33)
    assert drawn[1] == pytest.approx(3 * 2.0**-33)
    assert 22 < drawn[2] < 24


def test_torch_draws_the_same_bits() -> None:
    ids = np.arange(50_000)
    keys = row_keys(*(np.array(v, dtype=np.uint64) for v in ([1, 2**64 - 1], [0, 7], [3, 2**32 - 1])))
    hashed = spread(ids)
    ours = bits(keys[:, :1], keys[:, 1:], hashed[None, :])
    wide = torch.from_numpy(hashed.astype(np.int64)).expand(2, -1)
    theirs = bits_tensor(torch.from_numpy(keys.astype(np.int64)), wide)
    assert (theirs.numpy() == ours).all()
    assert np.allclose(exponential_tensor(theirs).numpy(), exponential(ours), rtol=1e-14)


def test_known_values() -> None:
    """Seeds keep their meaning across releases: these numbers never change."""
    assert noise_bits(42, 0, 0, np.array([0, 1, 49151])).tolist() == [3284098333, 2328381433, 659715986]
