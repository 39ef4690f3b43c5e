"""GPTQ and AWQ checkpoints packed by hand: what the worker makes of them has the dense model's logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from support.llama_checkpoints import reference_logits
from support.model_rows import load, one_prefill
from support.packed_words import Quantized, awq_tensors, gptq_tensors, round_to_nearest
from support.quantized_llama import each_layer, write_quantized

IDS = list(range(7, 47))
GPTQ: Mapping[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}
AWQ: Mapping[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}


def error(path: Path, section: Mapping[str, Any], pack: Any, **changes: Any) -> float:
    """The largest difference of the worker's logits from those of the dense model with the same numbers."""
    reference = write_quantized(path, section, each_layer(pack), **changes)
    return float((one_prefill(load(path), IDS) - reference_logits(reference, IDS)).abs().max())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("act_order", [False, True], ids=["in order", "act-order"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(tmp_path: Path, bits: int, act_order: bool, version: int) -> None:
    """Groups of 64 over rows of 96 and 160: the last is short."""

    def pack(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Quantized] | None:
        if name == "lm_head":
            return None
        layer = round_to_nearest(matrix, bits, 64, act_order=act_order, seed=len(name))
        return gptq_tensors(name, layer, version), layer

    form = "gptq" if version == 1 else "gptq_v2"
    section = {**GPTQ, "bits": bits, "checkpoint_format": form, "desc_act": act_order}
    assert error(tmp_path, section, pack) < 1e-3


def test_gptq_of_mixed_layers(tmp_path: Path) -> None:
    """Parts of what is one product elsewhere differ: 8 bits, 2 bits by columns in any order, floats."""

    def pack(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Quantized] | None:
        if "k_proj" in name or "layers.1.mlp" in name:
            return None
        if "v_proj" in name:
            layer = round_to_nearest(matrix, 8, 32)
        elif "up_proj" in name or name == "lm_head":
            layer = round_to_nearest(matrix, 4, -1, symmetric=True)
        else:
            layer = round_to_nearest(matrix, 4, 64, act_order=True)
        return gptq_tensors(name, layer), layer

    rules = {
        r"+:.*v_proj$": {"bits": 8, "group_size": 32, "desc_act": False},
        r"-:model\.layers\.1\.mlp\..*": {},
        r"+:.*(?:up_proj|lm_head)": {"group_size": -1},
        r"+:.*up_proj": {"bits": 3},
    }
    section = {**GPTQ, "dynamic": rules, "lm_head": True, "desc_act": True}
    assert error(tmp_path, section, pack) < 1e-3


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("group", [-1, 32, 64, 128])
def test_awq(tmp_path: Path, bits: int, group: int) -> None:
    def pack(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Quantized] | None:
        if name.endswith(("v_proj", "lm_head")):
            return None
        layer = round_to_nearest(matrix, bits, group)
        return awq_tensors(name, layer), layer

    section = {**AWQ, "bits": bits, "group_size": group, "modules_to_not_convert": ["v_proj"]}
    assert error(tmp_path, section, pack) < 1e-3
