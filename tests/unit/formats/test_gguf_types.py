"""GGUF's packed types: what becomes of random bytes is what the gguf library makes of them, to the bit."""

from __future__ import annotations

import gguf.quants
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGML_QUANT_SIZES

from hundredfold.plugin import CheckpointInfo, Codebook4Weight, GroupedIntWeight, LayerRequest, StoredTensor
from hundredfold.plugin.dequantize import dequantize
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_quantization
from hundredfold.plugin.testing.quantization import MemoryTensors

GGUF = Registry("hundredfold.quantization").get("gguf")
INFO = CheckpointInfo("gguf", None)

INTEGERS = {
    "Q4_0": (4, 32), "Q4_1": (4, 32), "Q5_0": (5, 32), "Q5_1": (5, 32), "Q8_0": (8, 32),
    "Q2_K": (2, 16), "Q3_K": (3, 16), "Q4_K": (4, 32), "Q5_K": (5, 32), "Q6_K": (6, 16),
}  # fmt: skip
"""Bits and group size."""
CODEBOOKS = ("IQ4_NL", "IQ4_XS", "MXFP4")
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}  # fmt: skip
"""Where a block has its float16 numbers: random ones would be NaN at times."""


def random_tensor(name: str, rows: int = 9, blocks: int = 2) -> tuple[StoredTensor, torch.Tensor]:
    """Any bytes are a block, so every code, scale and sign occurs."""
    random = np.random.default_rng(7)
    columns, nbytes = GGML_QUANT_SIZES[Kind[name]]
    raw = random.integers(0, 256, (rows, blocks, nbytes), dtype=np.uint8)
    for at in HALVES[name]:
        numbers = random.normal(size=(rows, blocks, 1)).astype(np.float16)
        raw[..., at : at + 2] = numbers.view(np.uint8)
    raw[0, 0] = 255  # the largest codes and scales
    for at in HALVES[name]:
        raw[0, 0, at : at + 2] = np.array([-3.5], dtype=np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[..., 0] = random.integers(100, 140, (rows, blocks), dtype=np.uint8)
        raw[1, 0, 0], raw[2, 0, 0] = 0, 1  # denormal scales
    matrix = gguf.quants.dequantize(raw.reshape(rows, -1), Kind[name])
    assert np.isfinite(matrix).all()
    stored = StoredTensor("blk.0.ffn_up.weight", name, (rows, blocks * columns), raw.reshape(-1))
    return stored, torch.from_numpy(matrix)


@pytest.mark.parametrize("name", [*INTEGERS, *CODEBOOKS])
def test_random_blocks_are_the_librarys_numbers(name: str) -> None:
    stored, matrix = random_tensor(name)
    layer = LayerRequest("blk.0.ffn_up", stored.shape)
    check_quantization(GGUF, INFO, {stored.name: stored}, {layer: matrix}, tolerance=1e-3)
    weight = GGUF.bind(INFO).load(layer, MemoryTensors({stored.name: stored}))
    assert torch.equal(dequantize(weight, torch.float32), matrix)
    if name in INTEGERS:
        assert isinstance(weight, GroupedIntWeight)
        assert (weight.bits, weight.group_size) == INTEGERS[name]
    else:
        assert isinstance(weight, Codebook4Weight)


@pytest.mark.parametrize("name", ["Q5_0", "Q4_K", "IQ4_XS"])
def test_the_matrix_is_not_the_files_memory(name: str) -> None:
    """Files are mapped; a weight that kept a view would fault when its pages are given back."""
    stored, matrix = random_tensor(name)
    layer = LayerRequest("blk.0.ffn_up", stored.shape)
    weight = GGUF.bind(INFO).load(layer, MemoryTensors({stored.name: stored}))
    stored.raw[:] = 0
    assert torch.equal(dequantize(weight, torch.float32), matrix)


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    stored, _ = random_tensor("Q4_K")
    short = StoredTensor(stored.name, "Q4_K", (9, 500), stored.raw)
    with pytest.raises(ValueError, match=r"has rows of 500, no multiple of Q4_K's block of 256"):
        GGUF.bind(INFO).load(LayerRequest("blk.0.ffn_up", (9, 500)), MemoryTensors({short.name: short}))


def test_what_became_of_each_type_is_said() -> None:
    method = GGUF.bind(INFO)
    for name in ("Q6_K", "Q4_K", "Q6_K"):
        stored, _ = random_tensor(name)
        method.load(LayerRequest("blk.0.ffn_up", stored.shape), MemoryTensors({stored.name: stored}))
    assert method.remarks == ("read as stored: 2 Q6_K, 1 Q4_K",)
    strange = StoredTensor("a.weight", "IQ3_S", (1, 256), np.zeros(110, dtype=np.uint8))
    with pytest.raises(ValueError, match="IQ3_S"):
        method.load(LayerRequest("a", (1, 256)), MemoryTensors({"a.weight": strange}))
    assert method.remarks[1:] == ("dequantized at load: 1 IQ3_S",)
