"""Checkpoints whose layers are of several formats, packed by hand: the dense model's logits; bad rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import CheckpointInfo
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model import ModelLoadError
from hundredfold_worker.model.formats import InstalledFormats
from support.llama_checkpoints import reference_logits
from support.model_rows import load, one_prefill
from support.packed_words import awq_tensors, gptq_tensors, round_to_nearest
from support.quantized_llama import write_quantized

IDS = list(range(7, 47))
GPTQ: Mapping[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": True,
    "checkpoint_format": "gptq",
}
AWQ: Mapping[str, Any] = {"quant_method": "awq", "bits": 3, "group_size": 64, "version": "gemm"}
INT8: Mapping[str, Any] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
RULES = [
    {"layers": "model.layers.0.self_attn.v_proj", "config": None},
    {"layers": "*.self_attn.*", "config": GPTQ},
    {"layers": "*.down_proj", "config": INT8},
    {"layers": "*.mlp.*", "config": AWQ},
]


def write(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor] | None:
    """A layer as ``RULES`` have it; the output layer has no rule."""
    if name == "model.layers.0.self_attn.v_proj" or name == "lm_head":
        return None
    if ".self_attn." in name:
        layer = round_to_nearest(matrix, 4, 32, act_order=True, seed=len(name))
        return gptq_tensors(name, layer), layer.matrix
    if name.endswith("down_proj"):
        largest = matrix.abs().amax(1)
        codes = (matrix / largest[:, None] * 127).round().to(torch.int8)
        return {f"{name}.weight": codes, f"{name}.SCB": largest}, codes.float() * (largest / 127)[:, None]
    layer = round_to_nearest(matrix, 3, 64)
    return awq_tensors(name, layer), layer.matrix


def section(rules: object) -> dict[str, Any]:
    return {"quant_method": "mixed", "rules": rules}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """The checkpoint and its logits."""
    directory = tmp_path_factory.mktemp("mixed")
    return directory, reference_logits(write_quantized(directory, section(RULES), write), IDS)


@pytest.mark.parametrize("options", [{}, {"kernels": ("torch",)}], ids=["auto", "torch"])
def test_each_layer_is_read_by_its_own_format(mixed: tuple[Path, Tensor], options: dict[str, Any]) -> None:
    directory, wanted = mixed
    model = load(directory, **options)
    assert float((one_prefill(model, IDS) - wanted).abs().max()) < 1e-3
    assert not model.runtime.warnings
    chosen = next(s for s in model.runtime.selections if s.subject == "quantization")
    assert chosen.chosen == "mixed"
    assert "layers: 7 by '*.self_attn.*', 4 by '*.mlp.*', " in chosen.reason
    assert "2 by no rule" in chosen.reason


def test_it_is_quantized_anew_like_any_other(mixed: tuple[Path, Tensor]) -> None:
    directory, wanted = mixed
    model = load(directory, quantization="int8", kernels=("torch",))
    said = next(s for s in model.runtime.selections if s.subject == "quantization")
    assert "from mixed weights dequantized first" in said.reason
    error = float((one_prefill(model, IDS) - wanted).norm() / wanted.norm())
    assert error < 0.1


def test_the_first_rule_that_matches_wins(tmp_path: Path) -> None:
    """The other way round the general rule takes a layer that is not stored so."""
    write_quantized(tmp_path, section(RULES[::-1]), write)
    with pytest.raises(ModelLoadError, match=r"model\.layers\.0\.mlp\.down_proj"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (None, "'rules' is None, expected is a list of 1 to 4096 rules"),
        ([], "'rules' is [], expected"),
        ({"*": GPTQ}, "expected is a list"),
        (["*"], "rule 1 is *, expected is an object of 'layers' and 'config'"),
        ([{"layers": "*"}], "expected is an object of 'layers' and 'config'"),
        ([{"layers": "*", "config": None, "bits": 4}], "expected is an object of 'layers' and 'config'"),
        ([{"layers": 7, "config": None}], "rule 1: 'layers' is '7', expected is a pattern"),
        ([{"layers": "", "config": None}], "rule 1: 'layers' is ''"),
        ([{"layers": "*" * 300, "config": None}], "rule 1: 'layers' is '*****"),
        ([{"layers": "*", "config": "gptq"}], "rule 1: 'config' is 'gptq'"),
        ([RULES[0], {"layers": "*", "config": {"quant_method": "no-such"}}], "rule 2, layers '*': "),
        ([{"layers": "*", "config": {}}], "rule 1, layers '*': "),
        ([{"layers": "*", "config": {**GPTQ, "bits": 5}}], "rule 1, layers '*': gptq: "),
        ([{"layers": "*", "config": section(RULES)}], "rules do not nest"),
    ],
)
def test_rules_that_cannot_be_followed(rules: object, said: str) -> None:
    registry = Registry("hundredfold.quantization")
    plugin = registry.get("mixed")
    info = CheckpointInfo("safetensors", section(rules), InstalledFormats(registry))
    assert not plugin.refuses(info)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is looked at below
        plugin.bind(info)
    assert said in str(caught.value)


def test_a_rule_that_names_no_format_ends_the_start(tmp_path: Path) -> None:
    write_quantized(
        tmp_path, section([{"layers": "*", "config": {"quant_method": "no-such"}}]), lambda *_: None
    )
    with pytest.raises(ModelLoadError, match=r"quantization 'mixed': rule 1, layers '\*': .*awq.*gptq"):
        load(tmp_path)


def test_a_pattern_cannot_take_for_ever() -> None:
    registry = Registry("hundredfold.quantization")
    rules = [{"layers": "*a" * 99 + "b", "config": None}]
    info = CheckpointInfo("safetensors", section(rules), InstalledFormats(registry))
    method = registry.get("mixed").bind(info)
    assert method._rule("a" * 1000) is None
