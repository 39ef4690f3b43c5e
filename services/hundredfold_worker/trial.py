"""Trial steps on a scratch cache: what the largest step takes, and the first step of each kind done.

Slots and cache are thrown away afterwards, so nothing of them can reach a request.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import torch

from hundredfold.errors import StartError
from hundredfold_worker.engine.apply import apply_plan
from hundredfold_worker.engine.outcome import Outcome
from hundredfold_worker.engine.passes import Pass, split_passes
from hundredfold_worker.engine.plan import Ints, NewSequence, StepPlan
from hundredfold_worker.engine.run_pass import PassRunner
from hundredfold_worker.engine.slots import EngineLimits, SlotTable
from hundredfold_worker.memory import watch_peak
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.sampling.params import MAX_LOGPROBS, SamplingParams

_GREEDY = SamplingParams(max_tokens=1)
_EVERYTHING = SamplingParams(
    max_tokens=1,
    temperature=1.0,
    top_p=0.9,
    repetition_penalty=1.1,
    logprobs=MAX_LOGPROBS,
    prompt_logprobs=MAX_LOGPROBS,
)
_WARM_ROWS = (1, 2, 4, 8, 16, 32)
_WARM_PROMPT = 16
_TIMED_ROWS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
_TIMED_ROUNDS = 5
"""Of the small ones, which decide most; the best counts: what else the machine did is not the step's."""
_TIMED_S = 3.0
"""Seconds for all of them; what is not timed by then is not."""
_TIMED_CONTEXT = 128
_LOADED_ROWS = 8
"""Rows that ask for everything; sampling takes memory by the row, not by the step."""
_PIECE = 32
"""Tokens at the end of the longest context: all of a step's there would take a CPU seconds."""


class Trial:
    """Steps with made-up tokens. Blocks are read and written over and over; the content does not matter."""

    def __init__(self, model: LoadedModel, limits: EngineLimits) -> None:
        longest = min(limits.max_num_batched_tokens, limits.max_model_len - 1)
        # No more than the first trial writes: nothing is read that was not written.
        blocks = max(1, longest // limits.block_size)
        self._limits = replace(limits, num_blocks=blocks)
        self._table = SlotTable(self._limits)
        self._runner = PassRunner(model, model.cache_planner.allocate(blocks), self._table)
        self._device = model.device

    def measure(self) -> int:
        """Bytes that the largest steps take beyond what is held: most tokens at once or most logits at once,
        with everything that can be asked of them, and on top of that the longest context.

        Raises:
            StartError: they do not fit at all.
        """
        longest = self._limits.max_model_len - 1
        piece = min(_PIECE, self._limits.max_num_batched_tokens, longest)
        with watch_peak(self._device) as wide:
            self._run(*self._widest())
        with watch_peak(self._device) as long:
            self._run([self._sequence(0, longest, piece, _GREEDY)], [piece])
        return wide.extra + long.extra

    def warm_up(self) -> None:
        """A short prompt, then batches of the common sizes."""
        prompt = min(_WARM_PROMPT, self._limits.max_model_len - 1, self._limits.max_num_batched_tokens)
        self._run([self._sequence(0, prompt, prompt, _GREEDY)], [prompt])
        for rows in _WARM_ROWS:
            if rows <= min(self._limits.max_num_seqs, self._limits.max_num_batched_tokens):
                self._run([self._sequence(slot, prompt, 1, _GREEDY) for slot in range(rows)], [1] * rows)

    def step_seconds(self, num_drafts: int) -> tuple[list[int], list[float]]:
        """Numbers of positions, ascending from 1, and seconds of steps that compute so many: the first ones
        in a row with drafts, larger ones in rows of one token.
        """
        limits = self._limits
        length = min(_TIMED_CONTEXT, limits.max_model_len - num_drafts - 1, limits.max_num_batched_tokens)
        most_rows = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        drafts = list(range(min(num_drafts, limits.max_num_batched_tokens - 1) + 1))
        rows = [count for count in _TIMED_ROWS if drafts[-1] + 1 < count <= most_rows]
        kinds = [(1, count) for count in drafts] + [(count, 0) for count in rows]
        best = [math.inf] * len(kinds)
        end = time.perf_counter() + _TIMED_S
        for timed in range(_TIMED_ROUNDS):
            for i, (num_rows, count) in enumerate(kinds if timed == 0 else kinds[: len(drafts)]):
                if time.perf_counter() > end and best[len(drafts) - 1] < math.inf:
                    break
                sequences = [self._sequence(slot, length, 1, _GREEDY) for slot in range(num_rows)]
                best[i] = min(best[i], self._run(sequences, [1] * num_rows, count))
        found = sum(seconds < math.inf for seconds in best)
        return [num_rows + count for num_rows, count in kinds[:found]], best[:found]

    def _widest(self) -> tuple[list[NewSequence], list[int]]:
        """One prompt that is scored, one that fills the step up, and a token for each other seat."""
        limits = self._limits
        rows = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        longest = limits.max_model_len - 1
        takes = [1] * rows
        spare = limits.max_num_batched_tokens - rows
        for slot, most in enumerate((limits.max_logit_rows - rows, spare)[:rows]):
            takes[slot] += min(most, spare, longest - 1)
            spare -= takes[slot] - 1
        params = [_EVERYTHING] * min(rows, _LOADED_ROWS) + [_GREEDY] * (rows - _LOADED_ROWS)
        if rows > 1:
            params[1] = _GREEDY
        return [self._sequence(slot, take, take, params[slot]) for slot, take in enumerate(takes)], takes

    def _run(self, sequences: list[NewSequence], takes: list[int], num_drafts: int = 0) -> float:
        """Seconds of a step in which each row also tries so many drafts."""
        slots = np.arange(len(sequences), dtype=np.int64)
        plan = StepPlan(
            1, new_sequences=tuple(sequences), slots=slots, num_tokens=np.array(takes, dtype=np.int64)
        )
        self._table.clear()
        apply_plan(self._table, plan)
        outcome = Outcome(plan, self._table)
        whole = Pass(slots, slots, plan.num_tokens, np.full_like(slots, num_drafts))
        begun = time.perf_counter()
        try:
            with torch.inference_mode():
                for part in split_passes(whole, self._table):
                    self._runner.run(part, outcome)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise StartError(
                f"a step of {sum(takes)} tokens in {len(takes)} sequences does not fit into memory: lower "
                "max_num_batched_tokens or max_num_seqs"
            ) from error
        return time.perf_counter() - begun

    def _sequence(self, slot: int, length: int, take: int, params: SamplingParams) -> NewSequence:
        """A prompt of ``length`` tokens, of which the last ``take`` are still to be computed."""
        ids: Ints = np.arange(length, dtype=np.int64) % self._limits.vocab_size
        blocks = -(-length // self._limits.block_size)
        table: Ints = (np.arange(blocks, dtype=np.int64) + slot) % self._limits.num_blocks
        return NewSequence(slot, slot, ids, params, block_ids=table, num_computed=length - take)
