"""Report 77: keys and values up to 20 in a quantized cache, by every way of reading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.llama_checkpoints import random_llama
from support.model_rows import load, run_rows

IDS = [(7 * index + index * index) % 90 + 3 for index in range(70)]
WAYS = {
    "prefill": [70],
    "in chunks": [32, 17, 21],
    "token by token": [40] + [1] * 30,
    "from a block on": [48, 22],
    "verifying drafts": [50, 5, 5, 5, 5],
}
TOP = 20.0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes what it did, but its keys and values reach 20: queries and outputs shrink."""
    model = random_llama(0, initializer_range=0.1)
    reached: dict[str, float] = {}

    def note(name: str) -> Any:
        def keep(module: object, inputs: object, output: Tensor) -> None:
            reached[name] = float(output.abs().max())

        return keep

    layers = [layer.self_attn for layer in model.model.layers]
    for index, layer in enumerate(layers):
        layer.k_proj.register_forward_hook(note(f"{index}.k"))
        layer.v_proj.register_forward_hook(note(f"{index}.v"))
    with torch.no_grad():
        model(torch.tensor([IDS]))
        for index, layer in enumerate(layers):
            for grown, shrunk, part in (("k", "q", "k"), ("v", "o", "v")):
                factor = TOP / reached[f"{index}.{part}"]
                layer.get_submodule(f"{grown}_proj").weight *= factor
                layer.get_submodule(f"{shrunk}_proj").weight /= factor
    directory = tmp_path_factory.mktemp("large")
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("attention", ["cpu", "torch"])
@pytest.mark.parametrize("encoding", ["int8", "fp8"])
def test_every_way_is_near_the_exact_cache(large: Path, encoding: str, attention: str) -> None:
    options = {"attention": attention}
    exact = run_rows(load(large, **options), [(IDS, [len(IDS)])])[0]
    model = load(large, kv_cache_dtype=encoding, **options)
    ways = run_rows(model, [(IDS, chunks) for chunks in WAYS.values()])
    for way, logits in zip(WAYS, ways, strict=True):
        error = float((logits - exact).norm() / exact.norm())
        assert 0 < error < 0.03, f"{way}: {error}"
        assert torch.equal(logits, ways[0]), way
