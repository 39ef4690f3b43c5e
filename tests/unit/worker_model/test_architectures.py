"""Logits of tiny random checkpoints of every architecture against transformers: whole, chunked, decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.model_rows import load, run_rows
from support.random_checkpoints import FAMILIES, fix_rotary, random_ids, random_model, reference_logits

THETA = {"rope_theta": 10_000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
ORIGINAL = {"original_max_position_embeddings": 32}
LAYER_TYPES = ["sliding_attention", "full_attention"]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "Llama, gelu": ("Llama", {"hidden_act": "gelu"}),
    "Mistral, window in every layer": ("Mistral", {"sliding_window": 20}),
    "Mistral, head_dim": ("Mistral", {"head_dim": 40, "sliding_window": 7}),
    "Qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "Qwen2, windows at the end": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "Qwen2, windows switched off": ("Qwen2", {"use_sliding_window": False, "sliding_window": 20}),
    "Qwen3, windows by layer": (
        "Qwen3",
        {"use_sliding_window": True, "sliding_window": 20, "layer_types": LAYER_TYPES},
    ),
    "Qwen3, biases": ("Qwen3", {"attention_bias": True}),
    "Gemma2, low caps": ("Gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "Gemma2, no caps": ("Gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "Gemma3, capped logits": ("Gemma3", {"final_logit_softcapping": 3.0}),
    "Gemma3, one key head": ("Gemma3", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    "Gemma3, linear where all is seen": (
        "Gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ),
    "Phi3, window": ("Phi3", {"sliding_window": 20}),
    "Phi3, half rotates": ("Phi3", {"rope_parameters": {**THETA, "partial_rotary_factor": 0.5}}),
    "Olmo2, a key head each": ("Olmo2", {"num_key_value_heads": 4, "attention_bias": True}),
    "yarn": ("Llama", {"rope_parameters": {**THETA, **YARN, **ORIGINAL}}),
    "yarn, whole ramp": ("Qwen3", {"rope_parameters": {**THETA, **YARN, **ORIGINAL, "truncate": False}}),
    "yarn, mscale": (
        "Qwen2",
        {"rope_parameters": {**THETA, **YARN, **ORIGINAL, "mscale": 1.0, "mscale_all_dim": 0.5}},
    ),
    "yarn, attention factor": (
        "Mistral",
        {
            "rope_parameters": {
                **THETA,
                **YARN,
                **ORIGINAL,
                "attention_factor": 1.3,
                "beta_fast": 8.0,
                "beta_slow": 0.5,
            }
        },
    ),
    "llama3": ("Qwen2", {"rope_parameters": {**THETA, **LLAMA3, **ORIGINAL}}),
    "linear": ("Olmo2", {"rope_parameters": {**THETA, "rope_type": "linear", "factor": 4.0}}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(tmp_path: Path, variant: str) -> None:
    """Windows end inside blocks, at their edges and beyond: 60 tokens, windows of 7 and 20, blocks of 16."""
    family, changes = VARIANTS[variant]
    reference = random_model(family, **changes)
    reference.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.runtime.warnings == ()
    assert model.runtime.num_parameters == reference.num_parameters()
    check(model, reference, variant)


def check(model: Any, reference: Any, what: str) -> None:
    ids = random_ids(60)
    wanted = reference_logits(reference, ids)
    ways = {"prefill": [60], "chunks": [7, 9, 44], "decode": [15, *[1] * 45]}
    for way, got in zip(ways, run_rows(model, [(ids, chunks) for chunks in ways.values()]), strict=True):
        error = float((got - wanted).abs().max())
        assert error <= 1e-4, f"{what}, {way}: {error}"
    assert torch.equal(got.argmax(-1), wanted.argmax(-1))


DYNAMIC = {**THETA, "rope_type": "dynamic", "factor": 3.0}
LONGROPE = {
    **THETA,
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * index for index in range(8)],
    "long_factor": [2.0 + 0.5 * index for index in range(8)],
}


@pytest.mark.parametrize("max_model_len", [64, 128, 160])
def test_dynamic_scaling_is_fixed_by_the_longest_sequence(tmp_path: Path, max_model_len: int) -> None:
    reference = random_model("Llama", max_position_embeddings=64, rope_parameters=DYNAMIC)
    reference.save_pretrained(tmp_path)
    fix_rotary(reference, max_model_len)
    check(load(tmp_path, max_model_len=max_model_len), reference, f"dynamic, {max_model_len}")


@pytest.mark.parametrize("max_model_len", [64, 65, None])
def test_longrope_takes_one_list_by_the_longest_sequence(tmp_path: Path, max_model_len: int | None) -> None:
    reference = random_model("Phi3", original_max_position_embeddings=64, rope_parameters=dict(LONGROPE))
    reference.save_pretrained(tmp_path)
    fix_rotary(reference, max_model_len or 256)
    check(load(tmp_path, max_model_len=max_model_len), reference, f"longrope, {max_model_len}")


def test_bf16_is_as_near_to_fp32_as_transformers_in_bf16(tmp_path: Path) -> None:
    """Gemma's embedding scale is rounded to the compute type, its norm weights are not."""
    reference = random_model("Gemma3", initializer_range=0.1)
    reference.save_pretrained(tmp_path)
    ids = random_ids(200)
    exact = reference_logits(reference, ids)
    theirs = reference_logits(reference.to(torch.bfloat16), ids).float()
    model = load(tmp_path, dtype="bf16")
    for ours in run_rows(model, [(ids, [200]), (ids, [50, 150])]):
        assert float((ours - exact).norm()) <= 1.1 * float((theirs - exact).norm())
    assert model.decoder.embedding_scale == 8.0  # type: ignore[attr-defined]


def test_the_embedding_scale_is_rounded_as_the_model_learnt_it(tmp_path: Path) -> None:
    random_model("Gemma3", hidden_size=96, num_hidden_layers=1).save_pretrained(tmp_path)
    assert load(tmp_path, dtype="bf16").decoder.embedding_scale == 9.8125  # type: ignore[attr-defined]
    assert load(tmp_path).decoder.embedding_scale == pytest.approx(96**0.5, rel=1e-7)  # type: ignore[attr-defined]
