"""A driver over a fresh engine with the toy model."""

from __future__ import annotations

from hundredfold.plugin import Drafter
from hundredfold_worker.engine.draft_cost import DraftCost
from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.slots import EngineLimits
from hundredfold_worker.engine.speculation import Speculation
from support.step_driver import StepDriver
from support.toy_model import ToyModel


def toy_driver(
    model: ToyModel | None = None,
    chunk: int = 1 << 30,
    drafter: Drafter | None = None,
    cost: DraftCost | None = None,
    **changes: int,
) -> StepDriver:
    """Keywords are limits. With a drafter every row may draft, and positions cost nothing unless told so."""
    toy = model or ToyModel()
    values = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_model_len": toy.max_model_len,
        "block_size": toy.block_size,
        "vocab_size": toy.vocab_size,
    } | changes
    values.setdefault("num_blocks", values["max_num_seqs"] * (toy.max_model_len // toy.block_size + 1))
    if drafter is not None:
        values.setdefault("max_draft_tokens", 5)
    limits = EngineLimits(**values)
    speculation = Speculation(drafter, cost or DraftCost([1], [1.0]), limits) if drafter else None
    engine = Engine(toy, toy.cache_planner.allocate(limits.num_blocks), limits, speculation)
    return StepDriver(engine, chunk, limits.max_draft_tokens)
