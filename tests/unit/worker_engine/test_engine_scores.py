"""Scores: of output and prompt tokens, under the model's own distribution, for those who asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hundredfold_worker.engine.plan import EndReason
from hundredfold_worker.sampling.host_logprobs import score_rows
from hundredfold_worker.sampling.logprobs import score_tensor
from hundredfold_worker.sampling.params import SamplingParams
from hundredfold_worker.sampling.scores import LEAST_LOGPROB, TokenScores
from support.step_driver import Track
from support.toy_model import ToyModel

PROMPT = np.random.default_rng(5).integers(0, 64, 200).tolist()


def expected(
    prefix: list[int], token: int, width: int, limit: int = 64
) -> tuple[float, int, list[int], list[float]]:
    """Reference: log softmax, rank and rivals from the definitions."""
    logits = ToyModel().logits_after(prefix)[:limit].astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum())
    order = sorted(range(limit), key=lambda i: (-logits[i], i))
    return logprobs[token], order.index(token) + 1, order[:width], logprobs[order[:width]].tolist()


def check(track: Track, width: int, first: int, tokens: list[int], limit: int = 64) -> None:
    """The track's scores cover ``tokens``, from position ``first`` on, each once and in order."""
    known = track.prompt + track.output
    position = first
    for part in track.scores:
        assert part.position == position
        for i in range(len(part.scores.logprobs)):
            logprob, rank, top_ids, top_logprobs = expected(known[:position], known[position], width, limit)
            assert part.scores.logprobs[i] == pytest.approx(logprob, abs=1e-5)
            assert part.scores.ranks[i] == rank
            assert part.scores.top_ids[i].tolist() == top_ids
            assert part.scores.top_logprobs[i] == pytest.approx(top_logprobs, abs=1e-5)
            position += 1
    assert position == first + len(tokens)


@pytest.mark.parametrize("width", [0, 1, 20])
def test_output_scores_are_raw(make_driver, width: int) -> None:
    """Report 110: temperature, penalties, bias and filters change what is drawn, not what is told."""
    plain = SamplingParams(max_tokens=9, logprobs=width)
    shaped = SamplingParams(
        max_tokens=9,
        logprobs=width,
        temperature=0.7,
        top_k=3,
        seed=4,
        presence_penalty=2.0,
        repetition_penalty=1.5,
        bias_ids=(8, 9),
        bias_values=(100.0, -100.0),
        bad_words=((10,),),
    )
    driver = make_driver()
    tracks = [driver.add(0, PROMPT[:11], plain), driver.add(1, PROMPT[:30], shaped)]
    silent = driver.add(2, PROMPT[:11], SamplingParams(max_tokens=9))
    driver.run()
    for track in tracks:
        check(track, width, len(track.prompt), track.output)
    assert not silent.scores
    assert silent.output == tracks[0].output


@pytest.mark.parametrize("chunk", [1 << 30, 64, 7, 1])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_prompt_scores(make_driver, chunk: int, max_tokens: int) -> None:
    """Report 36, 109: every prompt token but the first, whatever the chunks; with 0 tokens nothing else."""
    driver = make_driver(chunk=chunk)
    track = driver.add(0, PROMPT[:90], SamplingParams(max_tokens=max_tokens, prompt_logprobs=2))
    other = driver.add(1, PROMPT[:90], SamplingParams(max_tokens=3))
    driver.run()
    assert track.end is EndReason.LENGTH
    check(track, 2, 1, track.prompt[1:])
    assert track.output == other.output[:max_tokens]


def test_long_prompts_are_scored_in_bounded_memory(make_driver) -> None:
    """No forward asks for more logits than planned for, whatever the step asks; neighbours ride along."""
    seen: list[int] = []
    model = ToyModel(tamper=lambda ids, logits: seen.append(len(logits)))
    driver = make_driver(model, max_num_seqs=4, max_num_batched_tokens=1024)
    scored = [
        driver.add(i, PROMPT[: 200 - i], SamplingParams(max_tokens=2, prompt_logprobs=1)) for i in (0, 1)
    ]
    plain = driver.add(2, PROMPT[:50], SamplingParams(max_tokens=2))
    driver.run_step()
    limit = driver.engine.limits.max_logit_rows
    assert limit == 68
    assert max(seen) <= limit
    assert sum(seen) == 199 + 198 + 3
    assert len(seen) <= 8
    driver.run()
    for track in scored:
        check(track, 1, 1, track.prompt[1:])
    lonely = make_driver()
    same = lonely.add(0, PROMPT[:50], SamplingParams(max_tokens=2))
    lonely.run()
    assert plain.output == same.output


def test_prompt_scores_come_with_output_scores(make_driver) -> None:
    driver = make_driver(chunk=10)
    track = driver.add(0, PROMPT[:25], SamplingParams(max_tokens=4, prompt_logprobs=3, logprobs=3))
    driver.run()
    check(track, 3, 1, track.prompt[1:] + track.output)


def test_outputs_that_came_back_are_not_scored_again(make_driver) -> None:
    whole = make_driver()
    want = whole.add(0, PROMPT[:25], SamplingParams(max_tokens=8, logprobs=1))
    whole.run()
    driver = make_driver()
    track = driver.add(0, PROMPT[:25], SamplingParams(max_tokens=8, logprobs=1), want.output[:5])
    driver.run()
    assert track.output == want.output
    check(track, 1, 30, want.output[5:])


def test_ids_beyond_the_tokenizer_are_never_listed(make_driver) -> None:
    """Report 92: they are no part of the distribution, so probabilities add up to 1 without them."""
    driver = make_driver(ToyModel(tamper=lambda ids, logits: logits[:, 60:].fill_(50.0)))
    params = SamplingParams(max_tokens=6, logprobs=20, prompt_logprobs=20, vocab_limit=60)
    track = driver.add(0, [i % 60 for i in PROMPT[:25]], params)
    driver.run()
    assert max(track.output) < 60
    check(track, 20, 1, track.prompt[1:] + track.output, limit=60)


def by_row(logits: torch.Tensor, *rest: Any) -> TokenScores:
    return score_rows(logits.numpy(), *rest)


SCORERS = {"host": by_row, "torch": score_tensor}


@pytest.mark.parametrize("name", SCORERS)
def test_prompt_id_beyond_the_tokenizer_is_impossible(name: str) -> None:
    scores = SCORERS[name](torch.zeros((1, 64)), np.array([0]), np.array([62]), 60, 2)
    assert scores.logprobs.tolist() == [LEAST_LOGPROB]
    assert scores.ranks.tolist() == [61]


@pytest.mark.parametrize("name", SCORERS)
def test_scores_are_numbers_that_json_can_hold(name: str) -> None:
    logits = torch.full((1, 8), -torch.inf)
    logits[0, 3] = 1.0
    scores = SCORERS[name](logits, np.array([0]), np.array([5]), 8, 3)
    assert scores.logprobs.tolist() == [LEAST_LOGPROB]
    assert scores.top_ids.tolist() == [[3, 0, 1]]
    assert scores.top_logprobs.tolist() == [[0.0, LEAST_LOGPROB, LEAST_LOGPROB]]


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
def test_scores_do_not_depend_on_other_rows(name: str, spread: float) -> None:
    """And both ways agree: ids and ranks to the last tie, log probabilities to rounding."""
    rng = np.random.default_rng(1)
    logits = torch.from_numpy((rng.standard_normal((256, 1003)) * spread).astype(np.float32))
    logits[:, 100:104] = 3.0  # ties among the rivals, some of them at the edge
    rows, targets = np.arange(256), np.arange(256) * 3
    together = SCORERS[name](logits, rows, targets, 1003, 5)
    for i in (0, 100, 255):
        alone = SCORERS[name](logits[i : i + 1], np.array([0]), targets[i : i + 1], 1003, 5)
        assert alone.logprobs[0] == together.logprobs[i]
        assert (alone.top_ids[0] == together.top_ids[i]).all()
        assert (alone.top_logprobs[0] == together.top_logprobs[i]).all()
    other = SCORERS["torch" if name == "host" else "host"](logits, rows, targets, 1003, 5)
    assert (other.top_ids == together.top_ids).all()
    assert (other.ranks == together.ranks).all()
    np.testing.assert_allclose(other.logprobs, together.logprobs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other.top_logprobs, together.top_logprobs, rtol=1e-5, atol=1e-5)


def test_non_finite_prompt_logits_fail_the_request(make_driver) -> None:
    def tamper(ids: torch.Tensor, logits: torch.Tensor) -> None:
        if len(logits) > 5:
            logits[4, 7] = torch.nan

    driver = make_driver(ToyModel(tamper=tamper))
    track = driver.add(0, PROMPT[:25], SamplingParams(max_tokens=3, prompt_logprobs=1))
    driver.run()
    assert track.failure is not None
    assert "non-finite" in track.failure.message
    assert track.output == []
    assert not track.scores
