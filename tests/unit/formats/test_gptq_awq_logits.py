"""GPTQ and AWQ checkpoints packed by hand: what the worker makes of them has the dense model's logits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hundredfold_worker.model.errors import ModelLoadError
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
    """Parts of what is one product elsewhere differ: in bits, groups, order of columns; some are floats."""

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


def test_packed_weights_meet_int8_inputs_unless_floats_are_asked_for(tmp_path: Path) -> None:
    """Queries, keys and values are one product of packed integers, by columns in any order as well."""

    def pack(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Quantized] | None:
        if name == "lm_head":
            return None
        layer = round_to_nearest(matrix, 3, 64, act_order=True)
        return gptq_tensors(name, layer), layer

    section = {**GPTQ, "bits": 3, "desc_act": True}
    reference = write_quantized(tmp_path, section, each_layer(pack))
    model = load(tmp_path, dtype="auto")
    kernels = {s.reason for s in model.runtime.selections if s.subject == "kernels" and s.chosen == "cpu"}
    assert any(text.startswith("8 of 9 linear layers") and "kept in 4 bits" in text for text in kernels)
    got, wanted = one_prefill(model, IDS).float(), reference_logits(reference, IDS)
    assert float(torch.nn.functional.cosine_similarity(got, wanted).mean()) > 0.99


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


class TestHabitsOfWriters:
    """What tools leave beside the layers."""

    @staticmethod
    def pack(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Quantized] | None:
        if name == "lm_head":
            return None
        layer = round_to_nearest(matrix, 4, 64)
        return gptq_tensors(name, layer), layer

    def write(self, directory: Path, extra: Mapping[str, Tensor], **changes: Any) -> Tensor:
        """The logits that are right, once ``extra`` tensors are in the file, which gets AutoGPTQ's name."""
        reference = write_quantized(directory, GPTQ, each_layer(self.pack), **changes)
        plain = directory / "model.safetensors"
        save_file({**load_file(plain), **extra}, directory / "gptq_model-4bit-64g.safetensors")
        plain.unlink()
        return reference_logits(reference, IDS)

    def test_autogptq(self, tmp_path: Path) -> None:
        """A file of its own name, zeros for every layer's bias, a copy of the tied output layer."""
        biases = {
            "model.layers.0.self_attn.q_proj.bias": torch.zeros(96),
            "model.layers.1.mlp.down_proj.bias": torch.zeros(96),
        }
        copy = {"lm_head.weight": torch.zeros(96, 96)}
        wanted = self.write(tmp_path, {**biases, **copy}, tie_word_embeddings=True)
        model = load(tmp_path)
        assert float((one_prefill(model, IDS) - wanted).abs().max()) < 1e-3
        (warning,) = model.runtime.warnings
        assert "'lm_head.weight' is not used" in warning

    def test_a_bias_that_counts_is_not_left_out(self, tmp_path: Path) -> None:
        name = "model.layers.0.mlp.up_proj.bias"
        self.write(tmp_path, {name: torch.ones(160)})
        with pytest.raises(ModelLoadError, match=rf"tensor '{name}' is not zero"):
            load(tmp_path)

    def test_a_bias_that_is_expected(self, tmp_path: Path) -> None:
        """Report 68."""
        wanted = self.write(tmp_path, {}, attention_bias=True)
        assert float((one_prefill(load(tmp_path), IDS) - wanted).abs().max()) < 1e-3

    def test_a_section_of_its_own_file(self, tmp_path: Path) -> None:
        wanted = self.write(tmp_path, {})
        config = json.loads((tmp_path / "config.json").read_text())
        section = config.pop("quantization_config")
        del section["quant_method"]
        section["model_name_or_path"] = "elsewhere"
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "quantize_config.json").write_text(json.dumps(section))
        assert float((one_prefill(load(tmp_path), IDS) - wanted).abs().max()) < 1e-3


def test_rules_keep_their_order(tmp_path: Path) -> None:
    """transformers sorts what it writes into config.json; the quantizer's own file is as it was made."""
    rules = {"+:.*v_proj": {"bits": 8}, "+:.*_proj": {"bits": 3}}
    mixed = dict(sorted(rules.items()))
    assert list(mixed) != list(rules)

    def pack(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Quantized] | None:
        if name == "lm_head":
            return None
        layer = round_to_nearest(matrix, 8 if "v_proj" in name else 3, 64)
        return gptq_tensors(name, layer), layer

    reference = write_quantized(
        tmp_path, {**GPTQ, "dynamic": mixed, "model_name_or_path": "a"}, each_layer(pack)
    )
    own = {**GPTQ, "dynamic": rules, "model_name_or_path": "b"}
    (tmp_path / "quantize_config.json").write_text(json.dumps(own))
    got = one_prefill(load(tmp_path), IDS)
    assert float((got - reference_logits(reference, IDS)).abs().max()) < 1e-3


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    """Neither quantized nor plain; report 69."""
    write_quantized(tmp_path, GPTQ, each_layer(TestHabitsOfWriters.pack))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.qweight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        ModelLoadError, match=r"tensor 'model\.layers\.1\.self_attn\.k_proj\.qweight' is missing"
    ):
        load(tmp_path)


def test_old_awq(tmp_path: Path) -> None:
    """The section in a file and in words of AutoAWQ's own."""

    def pack(name: str, matrix: Tensor) -> tuple[Mapping[str, Tensor], Quantized] | None:
        layer = round_to_nearest(matrix, 4, 64)
        return (awq_tensors(name, layer), layer) if "mlp" in name else None

    reference = write_quantized(tmp_path, AWQ, each_layer(pack))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    section = {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}
    (tmp_path / "quant_config.json").write_text(json.dumps(section))
    got = one_prefill(load(tmp_path), IDS)
    assert float((got - reference_logits(reference, IDS)).abs().max()) < 1e-3
