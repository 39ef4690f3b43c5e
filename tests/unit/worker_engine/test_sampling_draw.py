"""The draw: against an independent numpy reference, for both drawers, in every combination of filters."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from hundredfold.plugin import Drawer, DrawRows
from hundredfold_cpu.drawing import CpuDrawer
from hundredfold_cpu.library import variants
from hundredfold_worker.sampling.draw import TorchDrawer
from hundredfold_worker.sampling.noise import bits, exponential, row_keys, spread

VOCAB = 512
DRAWERS: dict[str, Callable[[int], Drawer]] = {
    variant.isa: lambda vocab_size, variant=variant: CpuDrawer(variant, spread(np.arange(vocab_size)))
    for variant in variants()
} | {"torch": lambda vocab_size: TorchDrawer()}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def wanted(logits: np.ndarray, rows: list[int] | None = None, **columns: object) -> DrawRows:
    """Rows to draw, parameters per row or for all."""
    picked = np.arange(len(logits)) if rows is None else np.array(rows)
    n = len(picked)

    def column(name: str, default: object, dtype: type) -> np.ndarray:
        return np.broadcast_to(np.array(columns.get(name, default), dtype=dtype), (n,)).copy()

    limits = column("limit", logits.shape[1], np.int64)
    tops = [int(logits[row, :limit].argmax()) for row, limit in zip(picked, limits, strict=True)]
    zeros = np.zeros(n, dtype=np.uint64)
    seeds = column("seed", 0, np.uint64)
    return DrawRows(
        rows=picked,
        limits=limits,
        top_ids=np.array(tops),
        top_values=logits[picked, tops],
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", logits.shape[1], np.int64),
        top_p=column("top_p", 1.0, np.float64),
        min_p=column("min_p", 0.0, np.float64),
        keys=row_keys(seeds, zeros, column("position", 0, np.uint64)),
    )


def draw(name: str, logits: np.ndarray, request: DrawRows) -> np.ndarray:
    return DRAWERS[name](logits.shape[1]).draw(torch.from_numpy(logits.copy()), request)


def survivors(
    row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[list[int], np.ndarray]:
    """Reference: ids that may be drawn, and their probabilities, straight from the definitions."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:top_k]
    order = [i for i in order if row[i] > -np.inf]
    weights = np.exp((row[order].astype(np.float64) - row[order[0]]) / temperature)
    probabilities = weights / weights.sum()
    kept, mass = [], 0.0
    for i, p in enumerate(probabilities):
        if i and mass >= top_p:
            break
        kept.append(i)
        mass += p
    kept = [i for i in kept if weights[i] >= min_p]
    final = weights[kept] / weights[kept].sum()
    return [order[i] for i in kept], final


def reference_draw(row: np.ndarray, request: DrawRows, i: int) -> int:
    """Gumbel-max in the log domain over the reference's survivors."""
    ids, probabilities = survivors(
        row[: request.limits[i]],
        float(request.temperature[i]),
        int(request.top_k[i]),
        float(request.top_p[i]),
        float(request.min_p[i]),
    )
    noise = exponential(bits(request.keys[i, 0], request.keys[i, 1], spread(np.array(ids))))
    return ids[int(np.argmax(np.log(probabilities) - np.log(noise)))]


@cache
def filtered(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[np.ndarray, DrawRows, list[int]]:
    """24 rows, what is asked of them and the reference's ids: the same for every drawer."""
    logits = (np.random.default_rng(7).standard_normal((24, VOCAB)) * 3).astype(np.float32)
    request = wanted(
        logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=range(24), position=3
    )
    return logits, request, [reference_draw(logits[i], request, i) for i in range(24)]


@pytest.mark.parametrize("name", DRAWERS)
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    list(itertools.product([0.3, 1.0, 3.0], [VOCAB, 1, 7, 50], [1.0, 0.9, 0.3, 1e-9], [0.0, 0.02, 1.0])),
)
def test_every_combination_of_filters(
    name: str, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits, request, ids = filtered(temperature, top_k, top_p, min_p)
    assert draw(name, logits, request).tolist() == ids


@pytest.mark.parametrize("name", DRAWERS)
def test_rows_with_parameters_of_their_own(name: str) -> None:
    """Report 98: six requests, six settings, one batch; each row's candidates are its own."""
    rng = np.random.default_rng(3)
    one = (rng.standard_normal(VOCAB) * 2).astype(np.float32)
    settings = [(0.5, VOCAB, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (1.5, VOCAB, 0.6, 0.0)]
    settings += [(0.8, VOCAB, 1.0, 0.3), (2.0, 30, 0.5, 0.0), (1.0, 40, 0.9, 0.1)]
    draws = 200
    logits = np.repeat(one[None, :], len(settings), axis=0)
    seen: list[set[int]] = [set() for _ in settings]
    t, k, p, m = (list(column) for column in zip(*settings, strict=True))
    for seed in range(draws):
        request = wanted(logits, temperature=t, top_k=k, top_p=p, min_p=m, seed=seed)
        ids = draw(name, logits, request)
        for row, token in enumerate(ids.tolist()):
            seen[row].add(token)
            assert token == reference_draw(logits[row], request, row)
    for row, (temperature, top_k, top_p, min_p) in enumerate(settings):
        allowed, probabilities = survivors(one, temperature, top_k, top_p, min_p)
        assert seen[row] <= set(allowed)
        likely = {token for token, q in zip(allowed, probabilities, strict=True) if q > 0.06}
        assert likely <= seen[row]  # missed by chance with (1 - 0.06) ** 200


@pytest.mark.parametrize("name", DRAWERS)
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
def test_frequencies_follow_the_softmax(name: str, temperature: float) -> None:
    logits = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 1.0, -0.5], dtype=np.float32)
    draws = 10_000
    batch = np.repeat(logits[None, :], draws, axis=0)
    ids = draw(name, batch, wanted(batch, temperature=temperature, seed=11, position=range(draws)))
    probabilities = survivors(logits, temperature, 8, 1.0, 0.0)
    expected = np.zeros(8)
    expected[probabilities[0]] = probabilities[1] * draws
    observed = np.bincount(ids, minlength=8)
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < 24.3  # chi-square with 7 degrees of freedom: 1 in 1,000


@pytest.mark.parametrize("name", DRAWERS)
def test_rare_tokens_are_drawn_as_often_as_they_should(name: str) -> None:
    """A vocabulary of one likely token and 4,095 rare ones, which together hold a tenth of the mass."""
    logits = np.zeros(4096, dtype=np.float32)
    logits[9] = np.log(9 * 4095)
    draws = 3000
    batch = np.repeat(logits[None, :], 100, axis=0)
    rare = 0
    for start in range(0, draws, 100):
        ids = draw(name, batch, wanted(batch, seed=5, position=range(start, start + 100)))
        rare += int((ids != 9).sum())
    assert abs(rare - draws / 10) < 5 * np.sqrt(draws * 0.09)


@pytest.mark.parametrize("name", DRAWERS)
@pytest.mark.parametrize("batch", [7, 64, 256])
def test_a_row_does_not_depend_on_its_batch(name: str, batch: int) -> None:
    """Alone, in any place of a batch, among neighbours of any kind: the same id."""
    rng = np.random.default_rng(batch)
    logits = (rng.standard_normal((batch, 1003)) * 4).astype(np.float32)  # no multiple of a vector
    request = wanted(
        logits,
        temperature=rng.choice([0.4, 1.0, 2.0], batch),
        top_k=rng.choice([1003, 20, 200], batch),
        top_p=rng.choice([1.0, 0.8, 0.99], batch),
        min_p=rng.choice([0.0, 0.05], batch),
        seed=range(batch),
    )
    together = draw(name, logits, request)
    for i in (0, 1, batch // 2, batch - 1):
        alone = DrawRows(
            **{
                field: getattr(request, field)[i : i + 1]
                for field in DrawRows.__dataclass_fields__
                if field != "rows"
            },
            rows=np.array([0]),
        )
        assert draw(name, logits[i : i + 1], alone)[0] == together[i]
    order = rng.permutation(batch)
    shuffled = DrawRows(
        **{f: getattr(request, f)[order] for f in DrawRows.__dataclass_fields__ if f != "rows"},
        rows=np.arange(batch),
    )
    assert (draw(name, np.ascontiguousarray(logits[order]), shuffled) == together[order]).all()


@pytest.mark.parametrize("name", DRAWERS)
def test_top_k_comes_before_top_p(name: str) -> None:
    """Report 101: p = .4 .3 .2 .1 with top_k 2 and top_p .5 leaves token 0 alone."""
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], dtype=np.float32))
    batch = np.repeat(logits, 300, axis=0)
    only = draw(name, batch, wanted(batch, top_k=2, top_p=0.5, seed=range(300)))
    assert set(only.tolist()) == {0}
    both = draw(name, batch, wanted(batch, top_k=2, top_p=0.6, seed=range(300)))
    assert set(both.tolist()) == {0, 1}
    least = draw(name, batch, wanted(batch, top_p=1e-9, seed=range(300)))
    assert set(least.tolist()) == {0}
    off = draw(name, batch, wanted(batch, top_k=4, seed=range(300)))
    assert set(off.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", DRAWERS)
def test_ties_at_an_edge_keep_the_lower_ids(name: str) -> None:
    row = np.array([1.0, 2.0, 1.0, 1.0, 2.0, 1.0], dtype=np.float32)
    batch = np.repeat(row[None, :], 400, axis=0)
    assert set(draw(name, batch, wanted(batch, top_k=4, seed=range(400))).tolist()) == {0, 1, 2, 4}
    flat = np.zeros((400, 8), dtype=np.float32)
    assert set(draw(name, flat, wanted(flat, top_p=0.5, seed=range(400))).tolist()) == {0, 1, 2, 3}
    assert set(draw(name, flat, wanted(flat, top_k=3, seed=range(400))).tolist()) == {0, 1, 2}
    assert set(draw(name, flat, wanted(flat, top_k=8, seed=range(400))).tolist()) == set(range(8))


@pytest.mark.parametrize("name", DRAWERS)
@pytest.mark.parametrize("temperature", [1.1e-4, 1e-3, 1.0])
def test_huge_logits_give_numbers(name: str, temperature: float) -> None:
    """Report 100: fp16-sized logits, no warning, no NaN; the coldest draw takes the likeliest."""
    rng = np.random.default_rng(0)
    logits = rng.uniform(-60_000, 60_000, (8, VOCAB)).astype(np.float16).astype(np.float32)
    logits[:, :2] = -np.inf
    logits[:, 2] = -3e38
    with np.errstate(all="raise", under="ignore"):
        ids = draw(name, logits, wanted(logits, temperature=temperature, seed=range(8)))
        filtered = draw(name, logits, wanted(logits, temperature=temperature, top_p=0.9, seed=range(8)))
    assert (ids == logits.argmax(axis=1)).all()
    assert (filtered == logits.argmax(axis=1)).all()


@pytest.mark.parametrize("name", DRAWERS)
def test_masked_tokens_are_never_drawn(name: str) -> None:
    logits = np.full((300, 16), -np.inf, dtype=np.float32)
    logits[:, [3, 12]] = 0.0
    for filters in ({}, {"top_k": 5}, {"top_p": 0.99}, {"min_p": 0.1}, {"top_k": 15, "top_p": 0.999}):
        ids = draw(name, logits, wanted(logits, seed=range(300), **filters))
        assert set(ids.tolist()) == {3, 12}, filters


@pytest.mark.parametrize("name", DRAWERS)
def test_columns_beyond_the_limit_do_not_exist(name: str) -> None:
    """Report 92: the padding of a vocabulary is never sampled, however likely it looks."""
    logits = np.random.default_rng(1).standard_normal((64, 512)).astype(np.float32)
    logits[:, 500:] = 1000.0
    request = wanted(logits, limit=500, top_p=[1.0, 0.9] * 32, top_k=[512, 512, 40, 40] * 16, seed=range(64))
    assert (draw(name, logits, request) < 500).all()
    ids, values = DRAWERS[name](512).likeliest(
        torch.from_numpy(logits), np.arange(64), np.full(64, 500, dtype=np.int64)
    )
    assert (ids == logits[:, :500].argmax(axis=1)).all()
    assert (values == logits[:, :500].max(axis=1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", DRAWERS)
def test_likeliest_takes_the_lowest_of_equals_and_shows_nan(name: str, dtype: torch.dtype) -> None:
    logits = torch.zeros((6, 1003), dtype=dtype)
    logits[0, [901, 900, 1002]] = 5.0
    logits[1, [77, 78]] = torch.nan
    logits[2, 5] = torch.inf
    logits[3, ::2] = -0.0
    logits[4] = torch.arange(1003, 0, -1).neg()
    logits[5] = -torch.inf
    limits = np.full(6, 1003, dtype=np.int64)
    ids, values = DRAWERS[name](1003).likeliest(logits, np.arange(6), limits)
    assert ids.tolist() == [900, 77, 5, 0, int(logits[4].float().argmax()), 0]
    assert np.isnan(values[1])
    assert np.isinf(values[2])
    assert values[0] == 5.0
    assert values[4:].tolist() == [-1.0, -np.inf]
    some, _ = DRAWERS[name](1003).likeliest(logits, np.array([2, 0]), limits[:2])
    assert some.tolist() == [5, 900]


@pytest.mark.parametrize("name", [name for name in DRAWERS if name != "torch"])
def test_kernels_equal_torch_on_a_real_vocabulary(name: str) -> None:
    rng = np.random.default_rng(12)
    logits = (rng.standard_normal((12, 49_152)) * 2.5).astype(np.float32)
    logits[::2] = logits[::2].round(1)  # many ties
    for temperature, filters in (
        (1.0, {}),
        (0.2, {}),
        (5.0, {}),
        (1.0, {"top_p": 0.95}),
        (3.0, {"top_p": 0.99}),
    ):
        request = wanted(logits, temperature=temperature, seed=range(12), **filters)
        assert (draw(name, logits, request) == draw("torch", logits, request)).all(), (temperature, filters)
