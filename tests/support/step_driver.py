"""Drives an engine as the simplest scheduler would: a step at a time, own blocks for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.plan import EndReason, NewSequence, RowScores, StepPlan, StepResult
from hundredfold_worker.failures import RequestFailure
from hundredfold_worker.sampling.params import SamplingParams


def ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@dataclass
class Track:
    """What a sequence has received."""

    prompt: list[int]
    params: SamplingParams
    output: list[int] = field(default_factory=list)
    computed: int = 0
    end: EndReason | None = None
    stop_token_id: int | None = None
    failure: RequestFailure | None = None
    scores: list[RowScores] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.end is not None or self.failure is not None


@dataclass
class StepDriver:
    """One engine, sequences by slot, each with ``blocks_each`` blocks of its own."""

    engine: Engine
    chunk: int = 1 << 30
    """Most known tokens that a row computes in a step."""
    drafts: int = 0
    """Draft tokens that each row may try."""
    repeats: int = 0
    """Passes that may follow the first of each step."""
    tracks: dict[int, Track] = field(default_factory=dict)
    step: int = 0
    pending_new: list[NewSequence] = field(default_factory=list)
    pending_release: list[int] = field(default_factory=list)

    def blocks_of(self, slot: int) -> np.ndarray:
        limits = self.engine.limits
        each = limits.num_blocks // limits.max_num_seqs
        # Scattered, so that a table that is read as if it were contiguous is found out.
        return (np.arange(each) * limits.max_num_seqs + slot).astype(np.int64)

    def add(
        self, slot: int, prompt: Sequence[int], params: SamplingParams, output: Sequence[int] = ()
    ) -> Track:
        track = self.tracks[slot] = Track(list(prompt), params, list(output))
        self.pending_new.append(
            NewSequence(slot, 1000 + slot, ints(prompt), params, ints(output), self.blocks_of(slot))
        )
        return track

    def release(self, slot: int) -> None:
        del self.tracks[slot]
        self.pending_release.append(slot)

    def plan(self, slots: Sequence[int] | None = None) -> StepPlan:
        picked = [s for s, t in self.tracks.items() if not t.over] if slots is None else list(slots)
        self.step += 1
        plan = StepPlan(
            step=self.step,
            released_slots=ints(self.pending_release),
            new_sequences=tuple(self.pending_new),
            slots=ints(picked),
            num_tokens=ints(
                [
                    (min(self.chunk, len(t.prompt) + len(t.output) - t.computed) or 1) + self.repeats
                    for t in (self.tracks[s] for s in picked)
                ]
            ),
            num_draft_tokens=ints([self.drafts] * len(picked) if self.drafts else []),
            num_repeats=self.repeats,
        )
        self.pending_release, self.pending_new = [], []
        return plan

    def run_step(self, slots: Sequence[int] | None = None) -> StepResult:
        plan = self.plan(slots)
        result = self.engine.step(plan)
        self.take(plan, result)
        return result

    def take(self, plan: StepPlan, result: StepResult) -> None:
        assert result.step == plan.step
        assert len(result.num_computed) == len(result.num_outputs) == len(plan.slots)
        at = 0
        for row, slot in enumerate(plan.slots.tolist()):
            track, count = self.tracks[slot], int(result.num_outputs[row])
            track.output += result.token_ids[at : at + count].tolist()
            at += count
            track.computed = int(result.num_computed[row])
        assert at == len(result.token_ids)
        for end in result.ends:
            track = self.tracks[int(plan.slots[end.row])]
            track.end, track.stop_token_id = end.reason, end.stop_token_id
        for failed in result.failures:
            self.tracks[int(plan.slots[failed.row])].failure = failed.failure
        for scores in result.scores:
            self.tracks[int(plan.slots[scores.row])].scores.append(scores)

    def run(self, most_steps: int = 1000) -> None:
        for _ in range(most_steps):
            if all(track.over for track in self.tracks.values()):
                return
            self.run_step()
        raise AssertionError(f"not over after {most_steps} steps")
