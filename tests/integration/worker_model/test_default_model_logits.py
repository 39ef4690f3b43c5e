"""The default model against transformers over the same dequantized weights, and its weights to the bit."""

from __future__ import annotations

from pathlib import Path

import gguf.quants
import pytest
import torch
from gguf import GGMLQuantizationType

from hundredfold.models import DEFAULT_MODEL, gguf_metadata, pull, resolve
from hundredfold.plugin import CheckpointInfo, LayerRequest
from hundredfold.plugin.dequantize import dequantize
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.model.checkpoint import open_checkpoint
from support.llama_checkpoints import llama_from_gguf, reference_logits
from support.model_rows import load, run_rows

PROMPTS: dict[str, list[int]] = {
    "The capital of France is Paris, a city on the river Seine that has been a centre of art and learning.": [
        504, 3575, 282, 4649, 314, 7042, 28, 253, 2240, 335, 260, 4626, 1268, 462, 338, 553, 719, 253, 8560,
        282, 984, 284, 1380, 30,
    ],
    "Once upon a time, in a village by the sea, there lived an old fisherman who had never caught a fish.": [
        6403, 1980, 253, 655, 28, 281, 253, 6560, 411, 260, 3426, 28, 665, 4161, 354, 1573, 43663, 617, 761,
        2093, 8041, 253, 2698, 30,
    ],
    "def fibonacci(n): ...": [
        1604, 3987, 46477, 24, 94, 727, 472, 585, 304, 2067, 216, 34, 42, 448, 1003, 304, 472, 1003, 3987,
        46477, 24, 94, 731, 216, 33, 25, 1232, 3987, 46477, 24, 94, 731, 216, 34, 25, 198,
    ],
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144": [
        33, 28, 216, 33, 28, 216, 34, 28, 216, 35, 28, 216, 37, 28, 216, 40, 28, 216, 33, 35, 28, 216, 34,
        33, 28, 216, 35, 36, 28, 216, 37, 37, 28, 216, 40, 41, 28, 216, 33, 36, 36,
    ],
}  # fmt: skip
"""Texts and their ids."""


@pytest.fixture(scope="module")
def path() -> Path:
    return pull(DEFAULT_MODEL).weights[0]


@pytest.fixture(scope="module")
def model(path: Path) -> LoadedModel:
    return load(path, max_model_len=1024)


def test_logits_and_greedy_ids(model: LoadedModel, path: Path) -> None:
    """Every position of every prompt, each prompt stepped in another way."""
    reference = llama_from_gguf(path)
    ways = (lambda n: [n], lambda n: [7, n - 7], lambda n: [n - 3, 1, 1, 1], lambda n: [5, 9, n - 14])
    for (prompt, ids), way in zip(PROMPTS.items(), ways, strict=True):
        wanted = reference_logits(reference, ids)
        (got,) = run_rows(model, [(ids, way(len(ids)))])
        assert float((got - wanted).abs().max()) <= 1e-3, prompt
        assert torch.equal(got.argmax(-1), wanted.argmax(-1)), prompt


def test_same_bits_alone_chunked_and_batched(model: LoadedModel) -> None:
    chunked = run_rows(model, [(ids, [len(ids) - 6, *[1] * 6]) for ids in PROMPTS.values()])
    whole = [run_rows(model, [(ids, [len(ids)])])[0] for ids in PROMPTS.values()]
    assert all(map(torch.equal, chunked, whole))


def test_every_weight_is_the_librarys_to_the_bit(path: Path) -> None:
    metadata, tensors = gguf_metadata(path), open_checkpoint(resolve(str(path))).tensors
    method = Registry("hundredfold.quantization").get("gguf").bind(CheckpointInfo("gguf", None))
    seen = set()
    for name, tensor in metadata.tensors.items():
        if len(tensor.shape) != 2 or not name.startswith(("blk.0.", "blk.29.", "token_embd")):
            continue
        rows, columns = tensor.shape
        weight = method.load(LayerRequest(name.removesuffix(".weight"), (rows, columns)), tensors)
        raw = tensors.describe(name).raw.reshape(rows, -1)
        wanted = gguf.quants.dequantize(raw, GGMLQuantizationType[tensor.type_name])
        assert torch.equal(dequantize(weight, torch.float32), torch.from_numpy(wanted)), name
        assert torch.equal(tensors.dense(name), torch.from_numpy(wanted)), name
        seen.add(tensor.type_name)
    assert seen == {"Q4_1", "Q8_0"}


def test_what_it_occupies(model: LoadedModel, path: Path) -> None:
    """Four-bit codes and their scales, and the table once more where rows are looked up: no dense copy."""
    shapes = [tensor.shape for tensor in gguf_metadata(path).tensors.values()]
    count = sum(torch.Size(shape).numel() for shape in shapes)
    assert model.runtime.num_parameters == count == 134_515_008
    assert 0.5 * count < model.weight_bytes < count
