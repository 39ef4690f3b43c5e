"""Rotary frequencies and rotation: derived values, transformers' numbers, both orders of columns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from hundredfold.plugin import ElementwiseSpec, RotaryStyle
from hundredfold.plugin.registry import Registry
from hundredfold_worker.model import ModelLoadError
from hundredfold_worker.model.architectures.rope_config import rotary_from_config
from hundredfold_worker.model.architectures.shape import Shape
from hundredfold_worker.model.checkpoint import ConfigJson
from hundredfold_worker.model.description import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    RotaryDescription,
)
from hundredfold_worker.model.rotary import RotaryTable, amplitude, frequencies

CPU = torch.device("cpu")
OPERATIONS = (
    Registry("hundredfold.elementwise").get("torch").bind(ElementwiseSpec(CPU, torch.float32, frozenset()))
)
LLAMA3 = Llama3Scaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position=8192)


def rotated(rotary: RotaryDescription, positions: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    turned = x.clone()
    OPERATIONS.rotate(turned, RotaryTable(rotary, 16384, CPU).at(positions))
    return turned


def test_llama3_ratios() -> None:
    plain = frequencies(RotaryDescription(128, 500_000.0), 8192)
    scaled = frequencies(RotaryDescription(128, 500_000.0, scaling=LLAMA3), 8192)
    ratios = (scaled / plain)[[28, 29, 34, 40]]
    torch.testing.assert_close(ratios, torch.tensor([1, 0.828168, 0.190211, 0.125]), atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        ({"rope_type": "default"}, None),
        ({"rope_type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            LLAMA3,
        ),
    ],
)
def test_rotation_equals_transformers(parameters: dict[str, object], scaling: object) -> None:
    config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        head_dim=128,
        max_position_embeddings=16384,
        rope_parameters={"rope_theta": 500_000.0, **parameters},
    )
    theirs = LlamaRotaryEmbedding(config)
    rotary = RotaryDescription(128, 500_000.0, scaling=scaling)  # type: ignore[arg-type]
    assert torch.equal(frequencies(rotary, 16384), theirs.inv_freq)
    positions = torch.tensor([0, 1, 5, 1000, 9999])
    x = torch.randn(5, 4, 128, generator=torch.Generator().manual_seed(0))
    cosine, sine = theirs(x, positions[None])
    by_head = x.transpose(0, 1)[None]
    wanted = apply_rotary_pos_emb(by_head, by_head, cosine, sine)[0][0].transpose(0, 1)
    got = rotated(rotary, positions, x)
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=0)


def test_pairs_are_halves_in_another_order() -> None:
    x = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([1, 7, 100])
    halves = rotated(RotaryDescription(16, 1e4), positions, x)
    reordered = x.view(3, 2, 2, 8).transpose(2, 3).reshape(3, 2, 16)
    pairs = rotated(RotaryDescription(16, 1e4, RotaryStyle.PAIRS), positions, reordered)
    back = pairs.view(3, 2, 8, 2).transpose(2, 3).reshape(3, 2, 16)
    torch.testing.assert_close(back, halves, atol=1e-6, rtol=0)


@pytest.mark.parametrize("style", RotaryStyle)
def test_columns_past_the_rotary_part_stay(style: RotaryStyle) -> None:
    x = torch.randn(3, 2, 24, generator=torch.Generator().manual_seed(0))
    got = rotated(RotaryDescription(16, 1e4, style), torch.tensor([3, 4, 5]), x)
    assert torch.equal(got[..., 16:], x[..., 16:])
    assert not torch.equal(got[..., :16], x[..., :16])


def test_divisors() -> None:
    divided = frequencies(RotaryDescription(4, 1e4, scaling=DivisorScaling((1.0, 8.0))), 64)
    torch.testing.assert_close(divided, torch.tensor([1.0, 0.01 / 8]))


def test_a_table_too_large_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"max_model_len 134217728 needs .* at most 2097152"):
        RotaryTable(RotaryDescription(128, 1e4), 1 << 27, CPU)


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({}, 1.138629),
        ({"mscale": 0.7, "mscale_all_dim": 0.7}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, 1.138629 / 1.069315),
        ({"mscale": 1.0}, 1.138629),
        ({"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 0.5}, 1.25),
        ({"factor": 0.5}, 1.0),
        ({"factor": None}, 1.138629),
    ],
)
@pytest.mark.parametrize("section", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_yarn_stretches_attention_in_every_spelling(
    parameters: dict[str, object], wanted: float, section: str, kind: str
) -> None:
    values = {kind: "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, **parameters}
    shape = Shape("X", 96, 512, 2, 4, 4, 128, 96, max_position=32_768, norm_eps=1e-6, tied_head=False)
    rotary = rotary_from_config(ConfigJson(Path("config.json"), {section: values, "rope_theta": 1e6}), shape)
    assert amplitude(rotary) == pytest.approx(wanted, abs=1e-6)
    assert rotary.theta == 1e6
    at_zero = RotaryTable(rotary, 16, CPU).at(torch.tensor([0])).angles[0]
    torch.testing.assert_close(at_zero, torch.tensor([[wanted, 0.0]]).expand(64, 2), atol=1e-6, rtol=0)
