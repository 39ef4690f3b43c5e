"""Report 70: what overflows is not finite in the logits either, through every recipe and cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.llama_checkpoints import random_llama
from support.model_rows import load, one_prefill

IDS = [3, 4, 5, 6, 7]


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A product that no float holds in every token; an embedding that is infinite in the third."""
    product, table = random_llama(), random_llama()
    with torch.no_grad():
        for part in ("up", "gate"):
            product.model.layers[0].mlp.get_submodule(f"{part}_proj").weight *= 1e25
        table.model.embed_tokens.weight[IDS[2]] = torch.inf
    found = {}
    for name, model in (("product", product), ("table", table)):
        found[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(found[name])
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "auto"},
        {"dtype": "auto", "quantization": "int8", "kv_cache_dtype": "int8"},
        {"dtype": "auto", "quantization": "fp8", "kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "int4"},
    ],
    ids=str,
)
def test_it_reaches_the_logits(overflowing: dict[str, Path], options: dict[str, Any]) -> None:
    for name, first in (("product", 0), ("table", 2)):
        finite = one_prefill(load(overflowing[name], **options), IDS).isfinite().all(1).tolist()
        assert finite == [index < first for index in range(len(IDS))], name
