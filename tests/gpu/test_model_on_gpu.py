"""The model half on a CUDA device: plugins against their suite, logits against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hundredfold.plugin import Encoding
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_attention, check_kernel
from support.llama_checkpoints import random_llama, reference_logits
from support.model_rows import load, run_rows

pytestmark = pytest.mark.gpu


def test_attention() -> None:
    backend = Registry("hundredfold.attention").get("torch")
    check_attention(backend, device="cuda", encodings=(Encoding.FP32, Encoding.BF16))


def test_kernels() -> None:
    check_kernel(Registry("hundredfold.kernels").get("torch"), device="cuda")


def test_logits_equal_transformers(tmp_path: Path) -> None:
    reference = random_llama(attention_bias=True)
    reference.save_pretrained(tmp_path)
    model = load(tmp_path, device="cuda")
    ids = torch.randint(0, 96, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    wanted = reference_logits(reference, ids)
    for got in run_rows(model, [(ids, [60]), (ids, [7, 9, 44]), (ids, [9, *[1] * 51])]):
        assert float((got.cpu() - wanted).abs().max()) <= 1e-3


def test_auto_takes_the_gpu_and_bf16(tmp_path: Path) -> None:
    random_llama().save_pretrained(tmp_path)
    model = load(tmp_path, device="auto", dtype="auto")
    assert (model.device.type, model.dtype) == ("cuda", torch.bfloat16)
    kernels = [s for s in model.runtime.selections if s.subject == "kernels"]
    assert {refusal.name for refusal in kernels[0].refused} == {"cpu", "onednn"}
