"""GGUF checkpoints: every stored type, rotary order, scaling, biases and ties against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from hundredfold.plugin import RotaryStyle
from hundredfold_worker.model.description import DivisorScaling, LinearScaling
from support.llama_checkpoints import random_llama, reference_logits, write_gguf
from support.model_rows import load, run_rows

IDS = torch.randint(0, 96, (50,), generator=torch.Generator().manual_seed(1)).tolist()


def check(path: Path, kind: Any, **config: Any) -> Any:
    reference = write_gguf(random_llama(**config), path, kind)
    model = load(path)
    wanted = reference_logits(reference, IDS)
    for got in run_rows(model, [(IDS, [50]), (IDS, [7, 9, 34]), (IDS, [45, *[1] * 5])]):
        assert float((got - wanted).abs().max()) <= 1e-4
    return model


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
)
def test_one_type_throughout(tmp_path: Path, kind: Kind) -> None:
    check(tmp_path / "model.gguf", lambda name: kind)


def test_types_mixed_within_a_layer(tmp_path: Path) -> None:
    """As the files in the wild are: parts that share an input cannot be joined then."""
    kinds = {"attn_k": Kind.Q8_0, "attn_v": Kind.Q5_1, "ffn_up": Kind.F16, "token_embd": Kind.Q8_0}

    def kind(name: str) -> Kind:
        return next((kinds[part] for part in kinds if part in name), Kind.Q4_1)

    model = check(tmp_path / "model.gguf", kind)
    assert len(model.decoder.layers[0].qkv.parts) == 3
    assert len(model.decoder.layers[0].gate_up.parts) == 2


def test_parts_of_one_type_are_joined(tmp_path: Path) -> None:
    model = check(tmp_path / "model.gguf", lambda name: Kind.Q4_1)
    assert len(model.decoder.layers[0].qkv.parts) == 1
    assert len(model.decoder.layers[0].gate_up.parts) == 1


def test_biases(tmp_path: Path) -> None:
    model = check(tmp_path / "model.gguf", lambda name: Kind.Q8_0, attention_bias=True, mlp_bias=True)
    attention = model.description.layers[0].attention
    assert attention.qkv_bias
    assert attention.output_bias


def test_tied_head(tmp_path: Path) -> None:
    model = check(tmp_path / "model.gguf", lambda name: Kind.Q8_0, tie_word_embeddings=True)
    assert model.description.tied_head


def test_linear_scaling(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    model = check(tmp_path / "model.gguf", lambda name: Kind.F32, rope_parameters=rope)
    assert model.description.rotaries[0].scaling == LinearScaling(4.0)


def test_llama3_scaling_as_a_tensor(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = check(tmp_path / "model.gguf", lambda name: Kind.F32, rope_parameters=rope)
    assert isinstance(model.description.rotaries[0].scaling, DivisorScaling)
    assert model.description.rotaries[0].style is RotaryStyle.PAIRS
    assert not model.runtime.warnings


def test_head_size_apart_from_hidden_size(tmp_path: Path) -> None:
    check(tmp_path / "model.gguf", lambda name: Kind.F32, head_dim=24, num_key_value_heads=4)


def test_both_containers_give_one_model(tmp_path: Path) -> None:
    reference = random_llama()
    reference.save_pretrained(tmp_path / "safetensors")
    write_gguf(reference, tmp_path / "model.gguf", lambda name: Kind.F32)
    halves, pairs = load(tmp_path / "safetensors"), load(tmp_path / "model.gguf")
    assert halves.runtime.num_parameters == pairs.runtime.num_parameters == reference.num_parameters()
    got = [run_rows(model, [(IDS, [50])])[0] for model in (halves, pairs)]
    assert float((got[0] - got[1]).abs().max()) <= 1e-4
