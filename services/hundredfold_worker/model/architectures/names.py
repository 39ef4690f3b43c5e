"""What the parameters of a decoder are called in a checkpoint; a weight's tensors have suffixes to these."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from hundredfold_worker.model.description import ModelDescription


@dataclass(frozen=True, slots=True)
class LayerNames:
    """One layer. A norm that the layer does not have has no name."""

    query_key_value: tuple[str, ...]
    """Three names, or one where the checkpoint has them joined by rows."""
    attention_output: str
    gate_up: tuple[str, ...]
    """Two names, or one where the checkpoint has them joined by rows."""
    down: str
    attention_norm: str | None = None
    attention_post_norm: str | None = None
    mlp_norm: str | None = None
    mlp_post_norm: str | None = None
    query_norm: str | None = None
    key_norm: str | None = None

    def under(self, prefix: str) -> LayerNames:
        """The same names, each after ``prefix`` and a dot."""
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                found[field.name] = tuple(f"{prefix}.{name}" for name in value)
            elif value is not None:
                found[field.name] = f"{prefix}.{value}"
        return LayerNames(**found)

    def __iter__(self) -> Iterator[str]:
        """Every name."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                yield from value
            elif value is not None:
                yield value


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """The whole model."""

    embedding: str
    final_norm: str
    head: str
    layers: tuple[LayerNames, ...]
    ignored: re.Pattern[str]
    """Tensors that may be there and are not needed, such as precomputed rotary frequencies."""
    norm_offset: float = 0.0
    """What is added to every norm's weight as it is stored."""


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """What an architecture reads from a checkpoint's configuration."""

    description: ModelDescription
    names: ParameterNames


HF_LAYER = LayerNames(
    attention_norm="input_layernorm",
    query_key_value=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
)
"""Llama's layer as the transformers library saves it; others differ from it."""

GGUF_LAYER = LayerNames(
    attention_norm="attn_norm",
    query_key_value=("attn_q", "attn_k", "attn_v"),
    attention_output="attn_output",
    mlp_norm="ffn_norm",
    gate_up=("ffn_gate", "ffn_up"),
    down="ffn_down",
)
"""Llama's layer in GGUF; others differ from it."""

_FREQUENCIES = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
_ROPE = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight")


def hf_names(num_layers: int, layer: LayerNames = HF_LAYER, *, norm_offset: float = 0.0) -> ParameterNames:
    """Names of a checkpoint that the transformers library saved."""
    layers = tuple(layer.under(f"model.layers.{index}") for index in range(num_layers))
    return ParameterNames("model.embed_tokens", "model.norm", "lm_head", layers, _FREQUENCIES, norm_offset)


def gguf_names(num_layers: int, layer: LayerNames = GGUF_LAYER) -> ParameterNames:
    """Names of a GGUF file."""
    layers = tuple(layer.under(f"blk.{index}") for index in range(num_layers))
    return ParameterNames("token_embd", "output_norm", "output", layers, _ROPE)
