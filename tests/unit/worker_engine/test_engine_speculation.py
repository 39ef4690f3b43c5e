"""Steps of several tokens over the toy model: whatever is drafted, the answers are those without drafts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from hundredfold_worker.engine.plan import EndReason, NewSequence, StepPlan
from hundredfold_worker.failures import BrokenPlan, FailureCode
from hundredfold_worker.sampling.params import SamplingParams
from support.drafters import Knowing, Silent
from support.step_driver import StepDriver, Track, ints
from support.toy_driver import toy_driver
from support.toy_model import ToyModel

GREEDY = SamplingParams(max_tokens=24)


def random_params(rng: np.random.Generator) -> SamplingParams:
    """Anything that a request may ask for, in any combination."""

    def sometimes(value: object, other: object) -> object:
        return value if rng.random() < 0.3 else other

    return SamplingParams(
        max_tokens=int(rng.integers(1, 40)),
        min_tokens=int(sometimes(20, 0)),
        temperature=float(rng.choice([0.0, 0.0, 0.7, 1.5])),
        top_p=float(sometimes(0.8, 1.0)),
        top_k=int(sometimes(12, 0)),
        min_p=float(sometimes(0.05, 0.0)),
        seed=int(rng.integers(1 << 40)),
        choice_index=int(sometimes(2, 0)),
        stop_token_ids=tuple(sometimes((3, 5, 7, 11, 13), (3,))),
        bad_words=tuple(sometimes(((31,), *(((a, b)) for a in range(20) for b in range(40, 60))), ())),
        presence_penalty=float(sometimes(1.5, 0.0)),
        frequency_penalty=float(sometimes(0.8, 0.0)),
        repetition_penalty=float(sometimes(1.4, 1.0)),
        bias_ids=tuple(sometimes((33, 34), ())),
        bias_values=(),
        logprobs=sometimes(3, None),
        prompt_logprobs=sometimes(2, None),
        vocab_limit=int(sometimes(50, 0)),
    )


def random_cases(rng: np.random.Generator) -> list[tuple[list[int], SamplingParams]]:
    """Eight prompts, each with what it asks for."""
    cases = []
    for _ in range(8):
        params = random_params(rng)
        params = replace(params, bias_values=(3.0, -2.0)[: len(params.bias_ids)])
        cases.append((rng.integers(0, 48, rng.integers(1, 40)).tolist(), params))
    return cases


def scores_of(track: Track) -> dict[int, tuple[object, ...]]:
    """All scores by position."""
    found: dict[int, tuple[object, ...]] = {}
    for row in track.scores:
        for i, logprob in enumerate(row.scores.logprobs.tolist()):
            position = row.position + i
            assert position not in found
            rivals = row.scores.top_ids[i].tolist(), row.scores.top_logprobs[i].tolist()
            found[position] = (logprob, int(row.scores.ranks[i]), *map(tuple, rivals))
    return found


def answer_of(track: Track) -> tuple[object, ...]:
    return track.output, track.end, track.stop_token_id, scores_of(track)


@pytest.mark.parametrize("error_rate", [0.0, 0.2, 0.6, 1.0])
def test_the_same_ids_with_and_without(error_rate: float) -> None:
    """Reports 44, 45, 47: every parameter, greedy and seeded, in batches, with drafts right and wrong."""
    rng = np.random.default_rng(int(error_rate * 10))
    drafted = accepted = 0
    for _ in range(12):
        cases = random_cases(rng)
        plain = toy_driver(chunk=7)
        want = [plain.add(slot, *case) for slot, case in enumerate(cases)]
        plain.run()
        drafter = Knowing(error_rate, seed=int(rng.integers(1 << 30)))
        drafter.answers = {slot: track.prompt + track.output for slot, track in enumerate(want)}
        driver = toy_driver(chunk=int(rng.choice([4, 1 << 30])), drafter=drafter)
        got = [driver.add(slot, *case) for slot, case in enumerate(cases)]
        driver.run()
        assert list(map(answer_of, got)) == list(map(answer_of, want))
        totals = driver.engine.totals
        drafted, accepted = drafted + totals.drafted_tokens, accepted + totals.accepted_tokens
        assert totals.output_tokens == plain.engine.totals.output_tokens
        if error_rate == 0.0:
            assert driver.step < plain.step
    assert drafted > 500
    if error_rate == 1.0:
        assert accepted < 0.05 * drafted
    else:
        assert 0 < accepted <= drafted


@pytest.mark.parametrize("params", [GREEDY, replace(GREEDY, temperature=1.0)])
def test_seeds(params: SamplingParams) -> None:
    """Report 47: a seed twice is the same answer, another seed is another one, neighbours notwithstanding."""

    def answers(seeds: list[int]) -> list[list[int]]:
        driver = toy_driver(drafter=Knowing(1.0))
        tracks = [driver.add(slot, [5, 6, 7], replace(params, seed=s)) for slot, s in enumerate(seeds)]
        driver.run()
        return [track.output for track in tracks]

    one, two, again, *_ = answers([1, 2, 1, 77, 78])
    assert one == again
    assert answers([1]) == [one]
    assert (one == two) is params.greedy


@pytest.mark.parametrize("offset", range(5))
def test_a_stop_id_inside_an_accepted_draft(offset: int) -> None:
    """Report 43: the stop id at each place of a draft ends the answer there; nothing behind it is told,
    counted or left in the slot.
    """
    prompt = [9, 8, 7]
    plain = toy_driver()
    free = plain.add(0, prompt, GREEDY)
    plain.run()
    # The answer begins after `start` tokens of it, so that the stop is at each place of the next draft.
    stop_at = next(i for i in range(8, 20) if free.output.index(free.output[i]) == i)
    start = stop_at - offset
    drafter = Knowing()
    drafter.answers[0] = prompt + free.output
    driver = toy_driver(drafter=drafter)
    track = driver.add(
        0, prompt, replace(GREEDY, stop_token_ids=(free.output[stop_at],)), free.output[:start]
    )
    result = driver.run_step()
    assert result.num_drafted.tolist() == [5]
    assert result.token_ids.tolist() == free.output[start : stop_at + 1]
    assert (track.end, track.stop_token_id) == (EndReason.STOP, free.output[stop_at])
    assert result.num_computed.tolist() == [len(prompt) + stop_at]
    totals = driver.engine.totals
    assert (totals.output_tokens, totals.accepted_tokens) == (offset + 1, offset)
    # told as it is: all that was drawn was right, and no more than was drawn
    assert drafter.told == [(0, min(5, offset + 1), min(5, offset + 1))]


def test_ignored_stop_ids_go_on() -> None:
    """Report 44: min_tokens masks the stop id inside a draft as it does without drafts."""
    prompt = [9, 8, 7]
    params = replace(GREEDY, stop_token_ids=tuple(range(0, 64, 2)), min_tokens=15)
    plain = toy_driver()
    want = plain.add(0, prompt, params)
    plain.run()
    drafter = Knowing()
    drafter.answers[0] = prompt + want.output
    driver = toy_driver(drafter=drafter)
    got = driver.add(0, prompt, params)
    driver.run()
    assert answer_of(got) == answer_of(want)
    assert len(got.output) >= 15
    assert driver.step < 8


def test_the_length_limit() -> None:
    """Report 48: prompt and answer fill the context to the last token; drafts end where it does."""
    model = ToyModel(max_model_len=48)
    prompt = [4] * 20
    plain = toy_driver(ToyModel(max_model_len=48))
    want = plain.add(0, prompt, replace(GREEDY, max_tokens=1000))
    plain.run()
    drafter = Knowing()
    drafter.answers[0] = [*prompt, *want.output, 1, 1, 1, 1, 1, 1]
    driver = toy_driver(model, drafter=drafter)
    got = driver.add(0, prompt, replace(GREEDY, max_tokens=1000))
    driver.run()
    assert len(got.output) == 28
    assert answer_of(got) == answer_of(want)
    assert got.end is EndReason.LENGTH


def test_acceptance_counts_what_was_emitted() -> None:
    """Report 51: [d1, d2, EOS, d4, d5] verified is 3 tokens, not 6; accepted is never above proposed."""
    prompt = [2, 3]
    plain = toy_driver()
    free = plain.add(0, prompt, GREEDY)
    plain.run()
    at = next(i for i in range(2, 20) if free.output.index(free.output[i]) == i)
    drafter = Knowing()
    drafter.answers[0] = prompt + free.output
    driver = toy_driver(drafter=drafter)
    driver.add(0, prompt, replace(GREEDY, stop_token_ids=(free.output[at],)), free.output[: at - 2])
    result = driver.run_step()
    assert result.num_outputs.tolist() == [3]
    assert (driver.engine.totals.drafted_tokens, driver.engine.totals.accepted_tokens) == (5, 2)


def test_a_failure_behind_a_draft_is_told_as_without() -> None:
    """Non-finite logits behind the third token: the three are told, then the sequence alone fails."""

    plain = toy_driver()
    free = plain.add(0, [1, 2], GREEDY)
    plain.run()
    poisoned = torch.from_numpy(ToyModel().logits_after([1, 2, *free.output[:4]]))

    def poison(token_ids: Tensor, logits: Tensor) -> None:
        for row in logits:
            if torch.equal(row, poisoned):
                row.fill_(torch.nan)

    outputs = []
    for drafter in (None, Knowing()):
        if drafter is not None:
            drafter.answers[0] = [1, 2, *free.output]
        driver = toy_driver(ToyModel(tamper=poison), drafter=drafter)
        track = driver.add(0, [1, 2], GREEDY)
        beside = driver.add(1, [50, 51], GREEDY)
        driver.run()
        assert track.failure is not None
        assert track.failure.code is FailureCode.INTERNAL
        assert track.output == free.output[:4]
        outputs.append(beside.output)
    assert outputs[0] == outputs[1]


def test_a_step_that_fails_with_drafts_is_tried_without() -> None:
    """Memory that is short for the drafts is not short for the sequence."""
    widths: list[int] = []

    def short(token_ids: Tensor, logits: Tensor) -> None:
        widths.append(len(token_ids))
        if len(logits) > 1:
            raise MemoryError

    plain = toy_driver()
    want = plain.add(0, [1, 2], GREEDY)
    plain.run()
    driver = toy_driver(ToyModel(tamper=short, strict=False), drafter=Knowing(), max_num_seqs=1)
    got = driver.add(0, [1, 2], GREEDY)
    driver.run()
    assert got.output == want.output
    assert max(widths) > 2


class Broken(Knowing):
    """Raises, or answers with what is no draft."""

    def __init__(self, answer: list[list[int]] | None) -> None:
        super().__init__()
        self.answer = answer
        self.asked = 0

    def propose(self, requests):  # type: ignore[no-untyped-def]
        self.asked += 1
        if self.answer is None:
            raise RuntimeError("no drafts today")
        return self.answer


@pytest.mark.parametrize("answer", [None, [], [[1] * 6], [[64]], [[-1]]])
def test_a_broken_drafter_ends_speculation_and_nothing_else(answer: list[list[int]] | None) -> None:
    plain = toy_driver()
    want = plain.add(0, [1, 2], GREEDY)
    plain.run()
    drafter = Broken(answer)
    driver = toy_driver(drafter=drafter)
    got = driver.add(0, [1, 2], GREEDY)
    driver.run()
    assert got.output == want.output
    assert drafter.asked == 1
    assert driver.engine.totals.drafted_tokens == 0


def test_slots_are_forgotten() -> None:
    """A slot's next sequence is nobody's heir, whether it was released or the scheduler went away."""
    drafter = Knowing()
    driver = toy_driver(drafter=drafter)
    driver.add(3, [1, 2], replace(GREEDY, max_tokens=2))
    driver.run()
    driver.release(3)
    driver.add(3, [5], replace(GREEDY, max_tokens=2))
    driver.run()
    assert drafter.forgotten == [3]
    driver.engine.reset()
    assert drafter.forgotten == [3, 3]


def test_beams_are_not_drafted_for() -> None:
    """A beam's next ids are the scheduler's to choose; a plan that drafts for one is refused."""
    engine = toy_driver(drafter=Knowing()).engine
    beam = NewSequence(0, 1, ints([1, 2, 3]), replace(GREEDY, num_candidates=4), block_ids=ints([0, 1]))
    plan = StepPlan(
        1, new_sequences=(beam,), slots=ints([0]), num_tokens=ints([3]), num_draft_tokens=ints([2])
    )
    with pytest.raises(BrokenPlan, match="may draft for a beam"):
        engine.step(plan)


def test_one_step_ahead() -> None:
    """Plans name upper bounds: a plan that was made before the last result says 1 token and 5 drafts whatever
    came of the one before; the worker goes on from what is true, and skips who has ended.
    """
    prompts = [[1, 2, 3], [7] * 20]
    plain = toy_driver()
    want = [plain.add(slot, prompt, GREEDY) for slot, prompt in enumerate(prompts)]
    plain.run()
    drafter = Knowing(0.3)
    drafter.answers = {slot: track.prompt + track.output for slot, track in enumerate(want)}
    driver: StepDriver = toy_driver(drafter=drafter)
    got = [driver.add(slot, prompt, GREEDY) for slot, prompt in enumerate(prompts)]
    driver.run_step()
    while not all(track.over for track in got):
        plan = driver.plan([0, 1])
        driver.take(plan, driver.engine.step(replace(plan, num_tokens=ints([1, 1]))))
    assert list(map(answer_of, got)) == list(map(answer_of, want))


def test_a_long_rest_is_seldom_disturbed() -> None:
    """A drafter with nothing to offer is asked in every fourth pass after sixteen; a new sequence at once."""
    drafter = Silent()
    driver = toy_driver(drafter=drafter)
    driver.add(0, [5, 9], replace(GREEDY, max_tokens=60))
    driver.run()
    assert drafter.asked[0] <= 17 + (60 - 16) // 4
    driver.release(0)
    driver.add(0, [5, 9], replace(GREEDY, max_tokens=10))
    before = drafter.asked[0]
    driver.run()
    assert drafter.asked[0] - before >= 9
