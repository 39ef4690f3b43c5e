"""Beams in the worker: candidates instead of draws, and a branch that is what a fresh sequence would be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from hundredfold_worker.engine.plan import Branch, StepPlan, StepResult
from hundredfold_worker.failures import BrokenPlan
from hundredfold_worker.sampling.candidates import best, normalize
from hundredfold_worker.sampling.params import SamplingParams
from support.step_driver import StepDriver, ints

BEAM = SamplingParams(max_tokens=40, num_candidates=9)
KINDS = {
    "plain": BEAM,
    "penalized": replace(BEAM, presence_penalty=0.5, frequency_penalty=0.7, repetition_penalty=1.3),
    "edited": replace(
        BEAM,
        min_tokens=20,
        stop_token_ids=(3, 5, 7),
        bad_words=((31,), (40, 41)),
        bias_ids=(5, 6),
        bias_values=(2.0, -1.0),
    ),
    "part of the vocabulary": replace(BEAM, vocab_limit=30),
}


def candidates(plan: StepPlan, result: StepResult) -> dict[int, tuple[list[int], list[float]]]:
    """Candidates by slot."""
    return {
        int(plan.slots[found.row]): (found.candidates.token_ids.tolist(), found.candidates.logprobs.tolist())
        for found in result.candidates
    }


@dataclass
class Beams:
    """Three beams that branch at random, and the blocks that their tables hold."""

    driver: StepDriver
    prompt: list[int]
    params: SamplingParams
    histories: dict[int, list[int]] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    found: dict[int, tuple[list[int], list[float]]] = field(default_factory=dict)

    def begin(self) -> None:
        """The prompt in slot 0."""
        self.driver.add(0, self.prompt, self.params)
        plan = self.driver.plan()
        size = self.driver.engine.limits.block_size
        self.tables = {0: self.driver.blocks_of(0).tolist()[: -(-len(self.prompt) // size)]}
        # The driver gave the sequence more blocks than it needs; here a table is as long as its tokens.
        new = replace(plan.new_sequences[0], block_ids=ints(self.tables[0]))
        plan = replace(plan, new_sequences=(new,))
        self.histories = {0: list(self.prompt)}
        self.found = candidates(plan, self.driver.engine.step(plan))

    def branch(self, rng: np.random.Generator) -> StepPlan:
        """A plan in which each slot goes on as some beam; a beam's first child goes on in its place."""
        size = self.driver.engine.limits.block_size
        chosen = [int(rng.choice(sorted(self.histories))) for _ in range(3)]
        free_slots = [slot for slot in range(3) if slot not in chosen]
        full, partial = divmod(len(self.histories[chosen[0]]), size)
        held = {block for source in chosen for block in self.tables[source]}
        free = [block for block in range(self.driver.engine.limits.num_blocks) if block not in held]
        branches, copies, grown = [], [], []
        histories, tables = {}, {}
        for place, source in enumerate(chosen):
            slot = source if source not in chosen[:place] else free_slots.pop()
            token = self.found[source][0][int(rng.integers(3))]
            own = [free.pop()] if partial and slot != source else []
            kept = len(self.tables[source]) if slot == source else full
            if own:
                copies.append((self.tables[source][full], own[0]))
            branches.append(Branch(slot, source, token, kept, ints(own)))
            tables[slot] = self.tables[source][:kept] + own
            if not partial:
                grown.append((slot, free.pop()))
                tables[slot].append(grown[-1][1])
            histories[slot] = [*self.histories[source], token]
        self.histories, self.tables = histories, tables
        self.driver.step += 1
        return StepPlan(
            step=self.driver.step,
            branches=tuple(branches),
            grown_slots=ints([slot for slot, _ in grown]),
            grown_counts=ints([1] * len(grown)),
            grown_block_ids=ints([block for _, block in grown]),
            copy_sources=ints([source for source, _ in copies]),
            copy_destinations=ints([destination for _, destination in copies]),
            slots=ints(list(histories)),
            num_tokens=ints([1] * len(histories)),
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [5, 16, 30])
def test_a_branch_is_a_sequence_with_that_history(make_driver, kind: str, length: int) -> None:
    """Beams share full blocks and copy the part of a block; none ever sees another's tokens."""
    rng = np.random.default_rng(length)
    params, prompt = KINDS[kind], rng.integers(8, 30, length).tolist()
    beams = Beams(make_driver(), prompt, params)
    beams.begin()
    for _ in range(22):
        plan = beams.branch(rng)
        result = beams.driver.engine.step(plan)
        assert not result.failures
        assert not result.ends
        assert result.num_outputs.tolist() == [0, 0, 0]
        beams.found = candidates(plan, result)
        fresh: StepDriver = make_driver()
        for slot, tokens in beams.histories.items():
            fresh.add(slot, prompt, params, tokens[length:])
        whole = fresh.plan()
        wanted = candidates(whole, fresh.engine.step(whole))
        for slot, (ids, logprobs) in wanted.items():
            assert beams.found[slot][0] == ids
            np.testing.assert_array_equal(beams.found[slot][1], logprobs)


def test_candidates_are_log_probabilities() -> None:
    """The likeliest ids of log_softmax, best first; columns beyond the limit do not exist."""
    logits = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    wanted = logits[:, :50].log_softmax(1).topk(7, dim=1)
    changed = logits.clone()
    normalize(changed, np.array([1, 3]), np.array([50, 50]))
    for row in (1, 3):
        found = best(changed, row, 50, 7)
        assert found.token_ids.tolist() == wanted.indices[row].tolist()
        np.testing.assert_array_equal(found.logprobs, wanted.values[row].numpy())
    assert torch.equal(changed[[0, 2, 4]], logits[[0, 2, 4]])
    assert len(best(changed, 1, 50, 100).token_ids) == 50


def test_beams_disturb_no_neighbour(make_driver) -> None:
    params = SamplingParams(max_tokens=24, temperature=1.0, seed=7)
    alone: StepDriver = make_driver()
    track = alone.add(5, [9, 8, 7], params)
    alone.run()
    beams = Beams(make_driver(), [3, 4, 5, 6], BEAM)
    beams.begin()
    beside = beams.driver.add(5, [9, 8, 7], params)
    new, rng = beams.driver.pending_new, np.random.default_rng(0)
    while not beside.over:
        plan = beams.branch(rng)
        left = 3 if not beside.output else 1
        plan = replace(
            plan,
            new_sequences=tuple(new),
            slots=ints([*plan.slots, 5]),
            num_tokens=ints([*plan.num_tokens, left]),
        )
        new = []
        result = beams.driver.engine.step(plan)
        beams.found = candidates(plan, result)
        beside.output += result.token_ids.tolist()
        beside.end = result.ends[0].reason if result.ends else None
    assert beside.output == track.output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot": 8}, "branches.slot is 8"),
        ({"source_slot": 5}, "holds no running beam"),
        ({"source_slot": 1}, "holds no running beam"),
        ({"slot": 1}, "holds no running beam"),
        ({"token_id": 64}, "token_id is 64"),
        ({"kept_blocks": 99}, "kept_blocks is 99"),
        ({"kept_blocks": 0, "block_ids": ints([])}, "0 blocks for 4 computed tokens"),
        ({"block_ids": ints([10**6])}, "block_ids"),
        ({"kept_blocks": 1, "block_ids": ints(list(range(50)))}, "at most"),
    ],
)
def test_broken_branches(make_driver, change: dict[str, Any], message: str) -> None:
    driver: StepDriver = make_driver()
    driver.add(0, [5, 6, 7, 8], BEAM)
    driver.add(1, [5, 6, 7, 8], SamplingParams(max_tokens=4))
    driver.run_step()
    good = Branch(2, 0, 9, 0, ints([40]))
    plan = StepPlan(step=2, branches=(replace(good, **change),))
    with pytest.raises(BrokenPlan, match=message):
        driver.engine.step(plan)


def test_a_beam_is_computed_once(make_driver) -> None:
    """A plan that asks for what is computed already, or that branches twice into one slot, is broken."""
    driver: StepDriver = make_driver()
    driver.add(0, [5, 6, 7, 8], BEAM)
    driver.run_step()
    with pytest.raises(BrokenPlan, match="all computed"):
        driver.engine.step(StepPlan(step=2, slots=ints([0]), num_tokens=ints([1])))
    driver.engine.reset()
    driver.step = 0
    driver.add(0, [5, 6, 7, 8], BEAM)
    driver.run_step()
    twice = Branch(0, 0, 9, 1, ints([]))
    with pytest.raises(BrokenPlan, match="twice"):
        driver.engine.step(StepPlan(step=2, branches=(twice, twice)))
