"""Checkpoints that GPTQModel wrote: its numbers to the bit, the dense model's logits, the ids that follow."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hundredfold.models import resolve
from hundredfold.plugin import CheckpointInfo, LayerRequest
from hundredfold.plugin.dequantize import dequantize, fold_transform
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model.checkpoint import open_checkpoint
from support.model_rows import load, one_prefill
from support.repo import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
MADE = sorted(path.parent for family in ("gptq", "awq") for path in (FIXTURES / family).glob("*/reference.*"))
FORMATS = Registry("hundredfold.quantization")


def name_of(directory: Path) -> str:
    return str(directory.relative_to(FIXTURES))


def test_there_are_some() -> None:
    assert {name_of(path).split("/")[0] for path in MADE} == {"gptq", "awq"}


@pytest.mark.parametrize("directory", MADE, ids=name_of)
def test_every_layer_is_the_tools_to_the_bit(directory: Path) -> None:
    checkpoint = open_checkpoint(resolve(str(directory)))
    method = FORMATS.get(directory.parent.name).bind(checkpoint.info)
    digests = {k: v for k, v in load_file(directory / "reference.safetensors").items() if "layer." in k}
    assert digests
    for key, digest in digests.items():
        name = key.removeprefix("layer.")
        columns = CONFIGURED["intermediate_size" if "down_proj" in name else "hidden_size"]
        rows = checkpoint.tensors.describe(f"{name}.scales").shape[1]
        weight = method.load(LayerRequest(name, (rows, columns)), checkpoint.tensors)
        matrix = fold_transform(dequantize(weight, torch.float32), weight.transform).contiguous()
        assert hashlib.sha256(matrix.numpy().tobytes()).digest() == bytes(digest.tolist()), name


CONFIGURED = {"hidden_size": 160, "intermediate_size": 224}
"""Of every model here."""


@pytest.mark.parametrize("directory", MADE, ids=name_of)
def test_the_worker_computes_and_continues_alike(directory: Path) -> None:
    reference = load_file(directory / "reference.safetensors")
    prompt, greedy = reference["prompt"].tolist(), reference["greedy"].tolist()
    model = load(directory)
    logits = one_prefill(model, prompt + greedy)
    assert float((logits[: len(prompt)] - reference["logits"]).abs().max()) < 1e-3
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == greedy


def test_planes_of_bits_are_refused_by_name() -> None:
    config = json.loads((FIXTURES / "gptq" / "planar" / "config.json").read_text())
    section = config["quantization_config"]
    (reason,) = FORMATS.get("gptq").refuses(CheckpointInfo("safetensors", section))
    assert "'gptq_p' is not read" in reason
    for key in ("checkpoint_format", "format"):
        section.pop(key, None)
    (reason,) = FORMATS.get("gptq").refuses(CheckpointInfo("safetensors", section))
    assert "it may be 'gptq_p'" in reason
