"""A decoder captured as one list of calls gives the bits that its operations give one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hundredfold.plugin import AttentionBatch
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.model.load import LoadedDecoder
from support.llama_checkpoints import random_llama
from support.model_rows import load, run_rows
from support.random_checkpoints import FAMILIES, random_ids, random_model


class OneByOne:
    """A model whose decoder is called from Python."""

    def __init__(self, model: LoadedDecoder) -> None:
        self._model = model

    @torch.inference_mode()
    def forward(self, *step: Any) -> torch.Tensor:
        logits = self._model.decoder.forward(*step).float()
        cap = self._model.decoder.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def program(model: LoadedModel) -> Any:
    """What was captured."""
    assert isinstance(model, LoadedDecoder)
    return model.runner._captured


@pytest.mark.parametrize("family", FAMILIES)
def test_every_architecture_is_captured_with_equal_bits(family: str, tmp_path: Path) -> None:
    random_model(family).save_pretrained(tmp_path)
    model = load(tmp_path)
    assert isinstance(model, LoadedDecoder)
    rows = [
        (random_ids(40, seed), chunks) for seed, chunks in enumerate(([40], [30, *[1] * 10], [7, 20, 13]))
    ]
    captured = run_rows(model, rows)
    assert program(model) is not None
    assert all(map(torch.equal, captured, run_rows(OneByOne(model), rows)))  # type: ignore[arg-type]


def test_logits_of_some_positions_in_any_order(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    model = load(tmp_path)
    ids = torch.tensor(random_ids(5, 3))
    batch = AttentionBatch([5], [5], torch.zeros(1, 1, dtype=torch.int32), torch.arange(5), torch.arange(5))
    cache = model.cache_planner.allocate(1)

    def logits_at(*positions: int) -> torch.Tensor:
        return model.forward(ids, batch, cache, torch.tensor(positions, dtype=torch.int64)).clone()

    whole = logits_at(0, 1, 2, 3, 4)
    assert torch.equal(logits_at(4, 0, 3, 1, 2), whole[[4, 0, 3, 1, 2]])
    assert torch.equal(logits_at(3, 1), whole[[3, 1]])
    assert logits_at().shape == (0, model.vocab_size)


def test_buffers_grow_with_steps_and_stay_with_smaller_ones(tmp_path: Path) -> None:
    random_llama(max_position_embeddings=512).save_pretrained(tmp_path)
    model = load(tmp_path)
    sequence = random_ids(300, 5)
    run_rows(model, [(sequence, [1, 299])])
    grown = program(model)
    assert grown.rows >= 299
    cache = grown.cache
    one = AttentionBatch([1], [1], torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0]), torch.tensor([0]))
    model.forward(torch.tensor([7]), one, cache, torch.tensor([0]))
    assert program(model) is grown
    other = model.cache_planner.allocate(1)
    model.forward(torch.tensor([7]), one, other, torch.tensor([0]))
    assert program(model).cache is other
    assert program(model).rows >= 299


def test_what_cannot_be_captured_is_called_one_by_one(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    sequence = random_ids(30, 7)
    for options in ({"kernels": ("torch",)}, {"attention": "torch"}):
        model = load(tmp_path, **options)
        assert isinstance(model, LoadedDecoder)
        logits = run_rows(model, [(sequence, [20, *[1] * 10])])[0]
        assert program(model) is None, options
        assert torch.isfinite(logits).all()
