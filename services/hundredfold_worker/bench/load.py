"""A static planner: as many requests at once as asked, each in a slot with blocks of its own."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hundredfold.errors import StartError
from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.plan import Ints, NewSequence, StepPlan
from hundredfold_worker.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Load:
    """What is run."""

    num_requests: int
    concurrency: int
    input_len: int
    output_len: int
    seed: int


@dataclass(slots=True)
class Recorded:
    """When things happened, in seconds of ``time.perf_counter``."""

    started: NDArray[np.float64]
    """float64[requests]."""
    tokens: NDArray[np.float64]
    """float64[requests, output_len]: when each token was known; NaN where none came."""
    steps: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    """What a request failed of."""
    begun: float = 0.0
    ended: float = 0.0


class StaticPlanner:
    """Keeps the slots full. Decodes come first in a step, prompts share what is left of its tokens."""

    def __init__(self, engine: Engine, load: Load) -> None:
        limits = engine.limits
        need = -(-(load.input_len + load.output_len) // limits.block_size)
        _check("--concurrency", load.concurrency, "max_num_seqs", limits.max_num_seqs)
        _check(
            "--input-len and --output-len",
            load.input_len + load.output_len,
            "max_model_len",
            limits.max_model_len,
        )
        _check("blocks for --concurrency", load.concurrency * need, "num_kv_blocks", limits.num_blocks)
        _check("--concurrency", load.concurrency, "max_num_batched_tokens", limits.max_num_batched_tokens)
        self._engine = engine
        self._load = load
        self._blocks: Ints = np.arange(load.concurrency * need, dtype=np.int64).reshape(need, -1).T
        self._params = SamplingParams(max_tokens=load.output_len)
        rng = np.random.default_rng(load.seed)
        # The lowest ids are special in most vocabularies.
        self._prompts = rng.integers(
            min(1000, limits.vocab_size // 2), limits.vocab_size, (load.num_requests, load.input_len)
        )

    def run(self) -> Recorded:
        """All requests, from the first step to the last token."""
        load, engine = self._load, self._engine
        engine.reset()
        record = Recorded(np.zeros(load.num_requests), np.full((load.num_requests, load.output_len), np.nan))
        owner: Ints = np.full(load.concurrency, -1, dtype=np.int64)
        received: Ints = np.zeros(load.concurrency, dtype=np.int64)
        computed: Ints = np.zeros(load.concurrency, dtype=np.int64)
        next_request, free = 0, list(range(load.concurrency))
        released: list[int] = []
        record.begun = time.perf_counter()
        while True:
            fresh = []
            for slot in free[: load.num_requests - next_request]:
                owner[slot], received[slot], computed[slot] = next_request, 0, 0
                record.started[next_request] = time.perf_counter()
                fresh.append(self._sequence(slot, next_request))
                next_request += 1
            free = []
            slots = np.flatnonzero(owner >= 0)
            if not len(slots):
                break
            slots, takes = self._share(slots, computed)
            record.steps += 1
            plan = StepPlan(
                record.steps,
                released_slots=np.array(released, dtype=np.int64),
                new_sequences=tuple(fresh),
                slots=slots,
                num_tokens=takes,
            )
            result = engine.step(plan)
            now = time.perf_counter()
            computed[slots] = result.num_computed
            at = slots[result.num_outputs > 0]
            record.tokens[owner[at], received[at]] = now
            received[at] += 1
            released = [int(slots[end.row]) for end in result.ends]
            for row_failure in result.failures:
                slot = int(slots[row_failure.row])
                record.failures[int(owner[slot])] = row_failure.failure.message
                released.append(slot)
            owner[released] = -1
            free = released
        record.ended = time.perf_counter()
        return record

    def _share(self, slots: Ints, computed: Ints) -> tuple[Ints, Ints]:
        takes: Ints = np.maximum(self._load.input_len - computed[slots], 1)
        budget = self._engine.limits.max_num_batched_tokens
        if int(takes.sum()) <= budget:
            return slots, takes
        order = np.argsort(takes, kind="stable")  # decodes first
        left = budget - (np.cumsum(takes[order]) - takes[order])
        shared = np.clip(left, 0, takes[order])
        kept = shared > 0
        return slots[order][kept], shared[kept]

    def _sequence(self, slot: int, request: int) -> NewSequence:
        return NewSequence(slot, request, self._prompts[request], self._params, block_ids=self._blocks[slot])


def _check(what: str, value: int, setting: str, limit: int) -> None:
    if value > limit:
        raise StartError(f"{what}: {value} is over {setting} {limit}; set --{setting.replace('_', '-')}")
