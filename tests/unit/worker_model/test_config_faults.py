"""Configurations that contradict themselves, of each architecture: refused naming field, value and limit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hundredfold_worker.model import ModelLoadError
from hundredfold_worker.model.architectures import FROM_CONFIG, FROM_GGUF
from support.model_rows import load
from support.random_checkpoints import FAMILIES, random_model

YARN = {"rope_type": "yarn", "factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    saved = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, directory in saved.items():
        random_model(family).save_pretrained(directory)
    return saved


def refusal(checkpoint: Path, directory: Path, changes: dict[str, Any]) -> str:
    """Why the checkpoint with a changed configuration is refused; the weights are the same file."""
    config = json.loads((checkpoint / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value != "absent"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").symlink_to(checkpoint / "model.safetensors")
    with pytest.raises(ModelLoadError) as caught:
        load(directory)
    return str(caught.value)


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1e4, **parameters}}


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("Mistral", {"sliding_window": 0}, "'sliding_window' is 0, expected is a whole number from 1"),
        ("Mistral", {"sliding_window": 4.5}, "'sliding_window' is 4.5"),
        ("Mistral", {"layer_types": ["full_attention"]}, "'layer_types' is .*, expected is 2 times"),
        ("Mistral", {"layer_types": ["chunked_attention"] * 2}, "'layer_types' is .*chunked_attention"),
        ("Mistral", {"layer_types": [[1], {}]}, "'layer_types' is"),
        (
            "Mistral",
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": None},
            "'sliding_window' is None, expected is a number, because layer_types has sliding_attention",
        ),
        ("Qwen2", {"use_sliding_window": 1}, "'use_sliding_window' is 1, expected is true or false"),
        ("Qwen2", {"max_window_layers": -1}, "'max_window_layers' is -1"),
        ("Qwen2", {"head_dim": 8}, r"'model.layers.0.self_attn.q_proj.weight' has shape .*64.*64"),
        ("Qwen3", {"head_dim": "absent"}, r"q_proj.weight' has shape .*96.*64.*512.*64"),
        ("Qwen3", {"num_key_value_heads": 3}, "'num_key_value_heads' is 3, expected is a divisor of"),
        ("Gemma2", {"attn_logit_softcapping": 0}, "'attn_logit_softcapping' is 0, expected is a finite"),
        ("Gemma2", {"final_logit_softcapping": "high"}, "'final_logit_softcapping' is 'high'"),
        ("Gemma2", {"query_pre_attn_scalar": 0}, "'query_pre_attn_scalar' is 0"),
        ("Gemma2", {"hidden_activation": "relu"}, "'hidden_activation' is 'relu', expected is one of silu"),
        ("Gemma3", {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50.0, expected is null"),
        ("Gemma3", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' is True"),
        ("Gemma3", {"layer_types": "absent", "sliding_window_pattern": 0}, "'sliding_window_pattern' is 0"),
        ("Gemma3", rope(rope_type="default"), "'rope_parameters' is .*full_attention and sliding_attention"),
        (
            "Gemma3",
            {"rope_parameters": {"full_attention": {"rope_type": "mrope"}}},
            "'rope_parameters.full_attention.rope_type' is 'mrope'",
        ),
        ("Phi3", {"num_key_value_heads": 4}, r"'model.layers.0.self_attn.qkv_proj.weight' has shape"),
        ("Phi3", {"intermediate_size": 95}, r"'model.layers.0.mlp.gate_up_proj.weight' has shape"),
        ("Olmo2", {"attention_bias": True}, "'model.layers.0.self_attn.q_proj.bias' 64 is missing"),
        (
            "Llama",
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "'rope_parameters.full_attention' is .*, expected is no object",
        ),
        ("Llama", rope(**YARN, beta_fast=1.0, beta_slow=2.0), "'rope_parameters.beta_fast' is 1.0"),
        ("Llama", rope(rope_type="yarn", factor=-4), "'rope_parameters.factor' is -4"),
        ("Llama", rope(**YARN, truncate="no"), "'rope_parameters.truncate' is 'no'"),
        (
            "Llama",
            rope(**YARN, original_max_position_embeddings=0),
            "'rope_parameters.original_max_position_embeddings' is 0",
        ),
        ("Llama", rope(**YARN, rope_theta=1), "'rope_parameters.rope_theta' is 1, expected is .* above 1"),
        ("Llama", rope(rope_type="dynamic"), "'rope_parameters.factor' is missing"),
        ("Llama", rope(rope_type="linear", factor=10**400), "'rope_parameters.factor' is 1000"),
        (
            "Llama",
            rope(rope_type="dynamic", factor=2, partial_rotary_factor=0.125),
            "'rope_parameters.rope_type' is 'dynamic', .* here are 2",
        ),
        ("Phi3", rope(**LONGROPE, partial_rotary_factor=0.5), "'rope_parameters.short_factor' is .* 4 num"),
        ("Phi3", rope(**{**LONGROPE, "long_factor": "absent"}), "'rope_parameters.long_factor' is 'absent'"),
        ("Phi3", rope(**{**LONGROPE, "long_factor": [0.0] * 8}), "8 finite numbers above 0"),
        ("Phi3", rope(rope_type="ntk"), "'ntk', expected is one of default, .*, llama3, su, yarn"),
        ("Llama", rope(rope_type="su"), "'rope_parameters.rope_type' is 'su', expected is one of .*llama3$"),
    ],
)
def test_refused(
    checkpoints: dict[str, Path], tmp_path: Path, family: str, changes: dict[str, Any], said: str
) -> None:
    message = refusal(checkpoints[family], tmp_path, changes)
    assert re.search(said, message), message


def test_an_unknown_architecture_is_told_all_that_are_known(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    message = refusal(checkpoints["Llama"], tmp_path, {"architectures": ["BartModel"]})
    assert message.endswith(f"supported: {', '.join(sorted(FROM_CONFIG))}")
    assert len(FROM_CONFIG) == len(FAMILIES)
    assert set(FROM_GGUF) == {"gemma2", "gemma3", "llama", "olmo2", "phi3", "qwen2", "qwen3"}


@pytest.mark.parametrize(
    ("changes", "default", "longest"),
    [
        ({}, 256, 256),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}}, 256, 256),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 256, 1024),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 256, 512),
        ({"rope_parameters": {**YARN, "original_max_position_embeddings": 64}}, 256, 256),
        ({"rope_parameters": {**YARN, "original_max_position_embeddings": 256}}, 1024, 1024),
        ({"rope_parameters": "absent", "rope_theta": 1e4, "rope_scaling": {**YARN}}, 1024, 1024),
    ],
    ids=["plain", "llama3", "linear", "dynamic", "yarn already counted", "yarn", "yarn as before"],
)
def test_how_far_a_scaling_reaches(
    checkpoints: dict[str, Path], tmp_path: Path, changes: dict[str, Any], default: int, longest: int
) -> None:
    """A scaling is applied to the limit once, never to a limit that has it already."""
    parameters = changes.get("rope_parameters")
    if isinstance(parameters, dict):
        parameters |= {"rope_theta": 1e4}
        if parameters["rope_type"] == "llama3":
            parameters["high_freq_factor"] = 4.0
    config = json.loads((checkpoints["Llama"] / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(checkpoints["Llama"] / "model.safetensors")
    assert load(tmp_path).max_model_len == default
    assert load(tmp_path, max_model_len=longest).max_model_len == longest
    with pytest.raises(ModelLoadError, match=f"max_model_len is {longest + 1}, .* allows 1 to {longest}$"):
        load(tmp_path, max_model_len=longest + 1)
