"""Edits of logits: against a reference in plain Python, one row at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hundredfold_worker.sampling.edits import apply_edits
from hundredfold_worker.sampling.history import BadWords, TokenCounts
from hundredfold_worker.sampling.params import SamplingParams
from hundredfold_worker.sampling.sampler import Sampled, Sampler
from hundredfold_worker.sampling.table import SamplingTable

VOCAB = 40
PROMPT, OUTPUT = [1, 2, 3, 3, 30], [5, 6, 5, 3, 7, 5]


def reference(row: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    """Bias, bad words, stop ids, then repetition, frequency and presence, each in float32."""
    out = row.copy()
    for token, value in zip(params.bias_ids, params.bias_values, strict=True):
        out[token] += np.float32(value)
    known = prompt + output
    for *prefix, last in params.bad_words:
        if known[len(known) - len(prefix) :] == prefix:
            out[last] = -np.inf
    if len(output) < params.min_tokens:
        out[list(params.stop_token_ids)] = -np.inf
    repetition = np.float32(params.repetition_penalty)
    for token in set(known):
        if repetition != 1:
            out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
    for token in set(output):
        out[token] -= np.float32(params.frequency_penalty) * np.float32(output.count(token))
        out[token] -= np.float32(params.presence_penalty)
    return out


CASES = {
    "bias": SamplingParams(9, bias_ids=(0, 39, 5), bias_values=(2.5, -100.0, 0.125)),
    "bad words": SamplingParams(9, bad_words=((4,), (7, 5, 8), (5, 9), (3, 7, 5, 10), (1, 2, 11))),
    "min tokens": SamplingParams(9, min_tokens=7, stop_token_ids=(8, 9)),
    "min tokens reached": SamplingParams(9, min_tokens=6, stop_token_ids=(8, 9)),
    "repetition": SamplingParams(9, repetition_penalty=1.7),
    "repetition below one": SamplingParams(9, repetition_penalty=0.5),
    "presence": SamplingParams(9, presence_penalty=0.9),
    "negative presence": SamplingParams(9, presence_penalty=-2.0),
    "frequency": SamplingParams(9, frequency_penalty=0.3),
    "all": SamplingParams(
        9,
        bias_ids=(5, 30),
        bias_values=(3.0, 1.0),
        bad_words=((5, 9), (12,)),
        min_tokens=20,
        stop_token_ids=(6, 13),
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    ),
}


def edited(rows: dict[int, SamplingParams], logits: np.ndarray) -> np.ndarray:
    """Edit the given rows; slots are numbered the other way round."""
    table = SamplingTable(len(logits), VOCAB)
    slots = {row: len(logits) - 1 - row for row in rows}
    for row, params in rows.items():
        table.put(slots[row], params, np.array(PROMPT), np.array(OUTPUT[:-1]))
        if table.counted[slots[row]]:
            table.sparse[slots[row]].counts.add(OUTPUT[-1])
    tensor = torch.from_numpy(logits.copy())
    lengths = np.full(len(rows), len(OUTPUT))
    at, owners = np.array(list(rows)), np.array(list(slots.values()))
    pending = table.edits_pending(owners, lengths)
    apply_edits(
        tensor, at[pending], owners[pending], lengths[pending], table, lambda slot: np.array(PROMPT + OUTPUT)
    )
    return tensor.numpy()


@pytest.mark.parametrize("case", CASES)
def test_one_row(case: str) -> None:
    row = np.random.default_rng(2).standard_normal(VOCAB).astype(np.float32) * 3
    got = edited({0: CASES[case]}, row[None, :])[0]
    want = reference(row, CASES[case], PROMPT, OUTPUT)
    np.testing.assert_array_equal(got, want)
    assert case == "min tokens reached" or not np.array_equal(got, row)


def test_rows_side_by_side_do_not_touch_each_other() -> None:
    logits = np.random.default_rng(4).standard_normal((14, VOCAB)).astype(np.float32) * 3
    rows = dict(zip(range(14), list(CASES.values()) + [SamplingParams(9)] * 4, strict=True))
    got = edited(rows, logits)
    for row, params in rows.items():
        np.testing.assert_array_equal(got[row], reference(logits[row], params, PROMPT, OUTPUT))


def test_counts_grow_like_recounting() -> None:
    rng = np.random.default_rng(0)
    output = rng.integers(0, 300, 2000)
    grown = TokenCounts(np.array([7, 7, 299, 500]), output[:3])
    for token in output[3:].tolist():
        grown.add(token)
    whole = TokenCounts(np.array([500, 299, 7]), output)
    assert dict(zip(grown.token_ids.tolist(), grown.counts.tolist(), strict=True)) == dict(
        zip(whole.token_ids.tolist(), whole.counts.tolist(), strict=True)
    )
    assert whole.counts[whole.token_ids.tolist().index(500)] == 0


def test_bad_words_see_the_prompt_and_nothing_before_it() -> None:
    words = BadWords(((1, 2), (9, 1, 3), (4,), (1, 2)))
    assert words.single.tolist() == [4]
    assert words.completions(np.array([1])) == [2, 2]
    assert sorted(words.completions(np.array([9, 1]))) == [2, 2, 3]
    assert words.completions(np.array([2])) == []
    assert words.completions(np.zeros(0, dtype=np.int64)) == []


def test_slots_keep_nothing_of_their_last_sequence() -> None:
    table = SamplingTable(2, VOCAB)
    empty = np.zeros(0, dtype=np.int64)
    table.put(0, CASES["all"], np.array(PROMPT), np.array(OUTPUT))
    table.put(0, SamplingParams(5), np.array([1]), empty)
    assert not table.sparse
    assert not table.edits_pending(np.array([0]), np.array([0])).any()
    assert not table.is_stop(np.array([0, 0, 0]), np.array([6, 13, -1])[:, None].ravel())[:2].any()
    table.put(1, SamplingParams(5, stop_token_ids=tuple(range(30))), np.array([1]), empty)
    assert table.is_stop(np.array([1, 1, 0]), np.array([29, 30, 29])).tolist() == [True, False, False]
    table.clear(1)
    assert not table.sparse


@pytest.mark.parametrize("temperature", [0.0, 1e-7, 1e-5, 1e-4])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    """Report 100: fp16 logits up to 60,000, ties included."""
    logits = (
        np.random.default_rng(1).uniform(-60_000, 60_000, (32, VOCAB)).astype(np.float16).astype(np.float32)
    )
    logits[:, 20:] = logits[:, :20]
    table = SamplingTable(32, VOCAB)
    for slot in range(32):
        table.put(slot, SamplingParams(5, temperature=temperature, seed=slot), np.array([1]), np.zeros(0))
    got = Sampler(table).sample(
        torch.from_numpy(logits.copy()),
        np.arange(32),
        np.zeros(32, dtype=np.int64),
        lambda slot: np.array([1]),
    )
    assert (got.token_ids == logits.argmax(axis=1)).all()
    assert (got.token_ids < 20).all()
    assert not got.failures


def test_seeds_at_temperature_one() -> None:
    """Report 99, 111: seeds 1 to 20 give at least 10 outputs; the same seed the same one."""
    logits = np.random.default_rng(1).standard_normal((1, VOCAB)).astype(np.float32)
    table = SamplingTable(1, VOCAB)
    sampler = Sampler(table)

    def run(seed: int) -> tuple[int, ...]:
        table.put(0, SamplingParams(5, temperature=1.0, seed=seed), np.array([1]), np.zeros(0))
        ids = [
            sampler.sample(
                torch.from_numpy(logits.copy()), np.array([0]), np.array([n]), lambda s: np.array([1])
            )
            for n in range(4)
        ]
        return tuple(int(i.token_ids[0]) for i in ids)

    outputs = {run(seed) for seed in range(1, 21)}
    assert len(outputs) >= 19
    assert run(5) == run(5)


def test_narrower_logits_are_sampled_like_their_floats() -> None:
    logits = torch.from_numpy(np.random.default_rng(2).standard_normal((6, VOCAB)).astype(np.float32))
    narrow = logits.bfloat16()
    table = SamplingTable(6, VOCAB)
    asked = (
        SamplingParams(5),
        SamplingParams(5, temperature=1.0, seed=3),
        SamplingParams(5, bias_ids=(7,), bias_values=(9.0,)),
        SamplingParams(5, logprobs=2),
        SamplingParams(5, num_candidates=3),
        SamplingParams(5),
    )
    for slot, params in enumerate(asked):
        table.put(slot, params, np.array([1]), np.zeros(0))

    def sample(of: torch.Tensor) -> Sampled:
        return Sampler(table).sample(
            of, np.arange(6), np.zeros(6, dtype=np.int64), lambda slot: np.array([1])
        )

    got, expected = sample(narrow.clone()), sample(narrow.float())
    assert got.token_ids.tolist() == expected.token_ids.tolist()
    assert got.token_ids[2] == 7
    assert (got.scores[3].logprobs == expected.scores[3].logprobs).all()
    assert (got.candidates[4].logprobs == expected.candidates[4].logprobs).all()
