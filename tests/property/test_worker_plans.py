"""10,000 plans that are almost right, as arrays and as bytes: refused, or carried out within bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from google.protobuf.message import DecodeError

from hundredfold.internal.v1 import worker_pb2
from hundredfold_worker.codec import plan_of
from hundredfold_worker.engine.plan import NewSequence, StepPlan
from hundredfold_worker.failures import BrokenPlan
from hundredfold_worker.sampling.params import SamplingParams
from support.step_driver import ints
from support.toy_driver import toy_driver
from support.toy_model import ToyModel
from support.wire_plan import PLAN

GREEDY = SamplingParams(max_tokens=4)


def test_random_plans_never_do_harm() -> None:
    """5,000 plans of random numbers, most of them nearly right: refused, or carried out within bounds."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    engine = toy_driver(
        ToyModel(strict=False), max_num_seqs=4, num_blocks=12, max_num_batched_tokens=60
    ).engine
    carried, refused, step = 0, 0, 0
    for _ in range(5_000):
        plan = random_plan(rng, np.flatnonzero(engine._table.state), step + 1)
        try:
            result = engine.step(plan)
        except BrokenPlan:
            engine.reset()
            refused, step = refused + 1, 0
            continue
        carried, step = carried + 1, step + 1
        assert len(result.num_outputs) == len(plan.slots)
        assert (result.token_ids < 64).all()
        assert (result.num_computed <= 256).all()
    assert carried > 1000
    assert refused > 1000


def random_plan(rng: np.random.Generator, held: np.ndarray, step: int) -> StepPlan:
    """A plan that fits the slots held, but for a few numbers."""
    wild = rng.random() < 0.3
    span = (6, 14) if wild else (4, 12)  # slots, blocks

    def some(high: int, most: int) -> np.ndarray:
        return rng.integers(0, high, rng.integers(0, most + 1))

    released = some(span[0], 2) if wild else held[rng.random(len(held)) < 0.2]
    left = np.setdiff1d(held, released)
    fresh = []
    for slot in some(span[0], 2) if wild else np.setdiff1d(np.arange(4), left)[:2]:
        prompt = rng.integers(0, 66 if wild else 64, rng.integers(0 if wild else 1, 30)).tolist()
        computed = int(rng.integers(0, max(1, len(prompt) + wild)))
        params = replace(GREEDY, temperature=float(rng.choice([0.0, 1.0])), top_k=int(rng.integers(0, 70)))
        blocks = rng.integers(0, span[1], 3).tolist()
        fresh.append(
            NewSequence(int(slot), 9, ints(prompt), params, block_ids=ints(blocks), num_computed=computed)
        )
    known = np.union1d(left, [f.slot for f in fresh]).astype(np.int64)
    rows = some(span[0], 4) if wild else known
    grown = known[rng.random(len(known)) < 0.3]
    return StepPlan(
        step=step,
        released_slots=released,
        new_sequences=tuple(fresh),
        grown_slots=grown,
        grown_counts=np.ones(len(grown), dtype=np.int64),
        grown_block_ids=rng.integers(0, span[1], len(grown) + (wild and rng.random() < 0.2)),
        copy_sources=rng.integers(0, span[1], 2),
        copy_destinations=rng.integers(0, span[1], 2),
        slots=rows,
        num_tokens=rng.integers(0 if wild else 1, 15, len(rows)),
    )


def test_mutated_bytes() -> None:
    """Report 151: bytes near a valid plan either do not parse, are refused, or are carried out."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    valid = PLAN.SerializeToString()
    engine = toy_driver(ToyModel(strict=False), max_num_seqs=4, num_blocks=32).engine
    fates = {"unreadable": 0, "refused": 0, "done": 0}
    for _ in range(5_000):
        data = bytearray(valid)
        for _ in range(rng.integers(0, 4)):
            data[rng.integers(0, len(data))] = rng.integers(0, 256)
        if rng.random() < 0.2:
            del data[rng.integers(0, len(data)) :]
        engine.reset()
        try:
            engine.step(plan_of(worker_pb2.StepPlan.FromString(bytes(data))))
            fates["done"] += 1
        except DecodeError:
            fates["unreadable"] += 1
        except BrokenPlan:
            fates["refused"] += 1
    assert min(fates.values()) > 100, fates
