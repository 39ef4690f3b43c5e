"""Writes tiny checkpoints of the families whose rows llama.cpp's converter leaves in order, as it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import dequantize, quantize

from support.llama_checkpoints import GGUF_NAMES

_POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}

FAMILY_NAMES: Mapping[str, Mapping[str, str]] = {
    "qwen2": {},
    "qwen3": _HEAD_NORMS,
    "gemma2": {**_POST_NORMS, "pre_feedforward_layernorm": "ffn_norm"},
    "gemma3": {**_POST_NORMS, **_HEAD_NORMS, "pre_feedforward_layernorm": "ffn_norm"},
    "olmo2": {**_POST_NORMS, **_HEAD_NORMS},
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
}
"""What differs from Llama's names, by GGUF architecture."""


def write_family(
    model: Any, path: Path, architecture: str, kind: Callable[[str], GGMLQuantizationType], **keys: Any
) -> Any:
    """Write ``model``; ``kind`` gives each matrix its type by GGUF name, ``keys`` are further metadata.

    Returns the model with the numbers that the file holds after dequantization by the gguf library.
    """
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if getattr(config, "sliding_window", None) is not None:
        writer.add_sliding_window(config.sliding_window)
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, key, None) is not None:
            writer.add_float32(f"{architecture}.{key}", getattr(config, key))
    _write_scaling(writer, rope)
    for key, value in keys.items():
        name = f"{architecture}.{key.replace('__', '.')}"
        writer.add_array(name, value) if isinstance(value, list) else writer.add_uint32(name, value)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _write_parameter(writer, gguf_name(name, architecture), parameter, architecture, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _write_scaling(writer: GGUFWriter, rope: Mapping[str, Any]) -> None:
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if "original_max_position_embeddings" in rope:
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        for length in ("long", "short"):
            values = np.array(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", values)


def _write_parameter(
    writer: GGUFWriter,
    name: str,
    parameter: torch.Tensor,
    architecture: str,
    kind: Callable[[str], GGMLQuantizationType],
) -> None:
    values = parameter.numpy().copy()
    if values.ndim == 1:
        offset = 1.0 if architecture.startswith("gemma") and "norm" in name else 0.0
        writer.add_tensor(name, values + np.float32(offset))
        return
    packed = quantize(values, kind(name))
    writer.add_tensor(name, packed, raw_dtype=kind(name))
    parameter.copy_(torch.from_numpy(dequantize(packed, kind(name)).reshape(values.shape)))


def gguf_name(name: str, architecture: str) -> str:
    """A transformers parameter name in GGUF's spelling."""
    stem, suffix = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{GGUF_NAMES[stem]}.{suffix}"
    index, rest = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{index}.{({**GGUF_NAMES, **FAMILY_NAMES[architecture]})[rest]}.{suffix}"
