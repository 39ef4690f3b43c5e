"""A driver over a fresh engine with the toy model."""

from __future__ import annotations

from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.slots import EngineLimits
from support.step_driver import StepDriver
from support.toy_model import ToyModel


def toy_driver(model: ToyModel | None = None, chunk: int = 1 << 30, **changes: int) -> StepDriver:
    """Keywords are limits."""
    toy = model or ToyModel()
    values = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_model_len": toy.max_model_len,
        "block_size": toy.block_size,
        "vocab_size": toy.vocab_size,
    } | changes
    values.setdefault("num_blocks", values["max_num_seqs"] * (toy.max_model_len // toy.block_size + 1))
    limits = EngineLimits(**values)
    return StepDriver(Engine(toy, toy.cache_planner.allocate(limits.num_blocks), limits), chunk)
