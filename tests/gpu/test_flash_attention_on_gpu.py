"""The flash-attn backend with the library itself: the suite, and logits beside the torch backend's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hundredfold.plugin import Encoding
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_attention
from support.llama_checkpoints import random_llama
from support.model_rows import load, run_rows

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def library() -> None:
    """Skip where the option is not installed, with its own words."""
    reasons = Registry("hundredfold.attention").get("flash_attn").unavailable()
    if reasons:
        pytest.skip("; ".join(reasons))


def test_the_suite() -> None:
    report = check_attention(
        Registry("hundredfold.attention").get("flash_attn"),
        device="cuda",
        dtypes=(torch.bfloat16,),
        encodings=(Encoding.BF16,),
        block_sizes=(256,),
    )
    assert {case.split(",")[0] for case in report.refused} == {"sinks", "window"}


def test_logits_equal_the_torch_backends(tmp_path: Path) -> None:
    """One prefill, chunks, and single tokens over several blocks."""
    random_llama(max_position_embeddings=1024).save_pretrained(tmp_path)
    ids = torch.randint(0, 96, (600,), generator=torch.Generator().manual_seed(5)).tolist()
    rows = [(ids, [600]), (ids, [255, 1, 1, 343]), (ids, [580, *[1] * 20])]
    options = {"device": "cuda", "dtype": "bf16", "kv_cache_dtype": "bf16", "block_size": 256}
    flash, torch_logits = (
        run_rows(load(tmp_path, attention=name, **options), rows, block_size=256)
        for name in ("flash_attn", "torch")
    )
    for got, wanted in zip(flash, torch_logits, strict=True):
        error = float((got.float() - wanted.float()).norm() / wanted.float().norm())
        assert error <= 2e-2
