"""Engines over the toy model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hundredfold_worker.engine.engine import Engine
from hundredfold_worker.engine.slots import EngineLimits
from support.step_driver import StepDriver
from support.toy_model import ToyModel

MakeDriver = Callable[..., StepDriver]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_driver() -> MakeDriver:
    """A driver over a fresh engine; keywords are limits, ``model`` and ``chunk``."""

    def make(model: ToyModel | None = None, chunk: int = 1 << 30, **changes: int) -> StepDriver:
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

    return make
