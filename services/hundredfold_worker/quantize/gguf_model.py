"""A GGUF model in the words of transformers: config.json, parameter names, rows in halves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hundredfold.models import GgufMetadata
from hundredfold.plugin import RotaryStyle
from hundredfold_worker.model.architectures import DescribedModel, LayerNames, ParameterNames
from hundredfold_worker.model.architectures.names import HF_LAYER, hf_names
from hundredfold_worker.model.description import LinearScaling, ModelDescription
from hundredfold_worker.quantize.errors import QuantizeError


@dataclass(frozen=True, slots=True)
class Turned:
    """A model as transformers would have it."""

    config: dict[str, Any]
    description: ModelDescription
    names: ParameterNames
    in_pairs: bool
    """Whether the file has query and key rows in pair order, which transformers do not."""


@dataclass(frozen=True, slots=True)
class _Family:
    architecture: str
    model_type: str
    layer: LayerNames
    more: Callable[[ModelDescription], dict[str, Any]]


def _llama(description: ModelDescription) -> dict[str, Any]:
    attention, mlp = description.layers[0].attention, description.layers[0].mlp
    if attention.qkv_bias != attention.output_bias:
        raise QuantizeError("a llama of GGUF with biases on some projections has no config.json")
    if attention.sliding_window is not None:
        raise QuantizeError("a llama of GGUF with a sliding window has no config.json")
    return {"attention_bias": attention.qkv_bias, "mlp_bias": mlp.bias}


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", "llama", HF_LAYER, _llama),
    "qwen2": _Family("Qwen2ForCausalLM", "qwen2", HF_LAYER, lambda _: {"use_sliding_window": False}),
    "qwen3": _Family(
        "Qwen3ForCausalLM",
        "qwen3",
        replace(HF_LAYER, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
        lambda _: {"use_sliding_window": False, "attention_bias": False},
    ),
}
"""By ``general.architecture``."""


def as_transformers(metadata: GgufMetadata, model: DescribedModel) -> Turned:
    """Raises ``QuantizeError`` for a family or a rotary setting that this has no words for."""
    description = model.description
    family = _FAMILIES.get(description.architecture)
    if family is None:
        raise QuantizeError(
            f"{metadata.path}: a GGUF file of architecture '{description.architecture}' cannot be written as "
            f"safetensors; supported: {', '.join(_FAMILIES)}. Start from its safetensors"
        )
    attention = description.layers[0].attention
    in_pairs = attention.rotary is not None and attention.rotary.style is RotaryStyle.PAIRS
    if attention.rotary is None or attention.rotary.dim != attention.head_dim:
        raise QuantizeError(f"{metadata.path}: heads that rotate in part cannot be written as safetensors")
    if any(layer != description.layers[0] for layer in description.layers):
        raise QuantizeError(f"{metadata.path}: layers that differ cannot be written as safetensors")
    layers = tuple(
        replace(
            layer,
            attention=replace(layer.attention, rotary=replace(attention.rotary, style=RotaryStyle.HALVES)),
        )
        for layer in description.layers
    )
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": description.vocab_size,
        "hidden_size": description.hidden_size,
        "intermediate_size": description.layers[0].mlp.intermediate_size,
        "num_hidden_layers": description.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": description.layers[0].mlp.activation.value,
        "max_position_embeddings": description.max_position,
        "rms_norm_eps": _short(description.norm_eps),
        "tie_word_embeddings": description.tied_head,
        "rope_theta": attention.rotary.theta,
        "rope_parameters": {"rope_theta": attention.rotary.theta, **_scaling(metadata, model)},
        "bos_token_id": metadata.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": metadata.integer("tokenizer.ggml.padding_token_id"),
        **family.more(description),
    }
    names = hf_names(description.num_layers, family.layer)
    return Turned(config, replace(description, layers=layers), names, in_pairs)


def in_halves(rows: Tensor, heads: int) -> Tensor:
    """Query or key rows [heads * head_dim, ...] from pair order to the order of transformers."""
    by_pair = rows.view(heads, -1, 2, *rows.shape[1:])
    return by_pair.transpose(1, 2).reshape(rows.shape)


def _scaling(metadata: GgufMetadata, model: DescribedModel) -> dict[str, Any]:
    rotary = model.description.layers[0].attention.rotary
    scaling = None if rotary is None else rotary.scaling
    match scaling:
        case None:
            return {"rope_type": "default"}
        case LinearScaling(factor):
            return {"rope_type": "linear", "factor": factor}
    raise QuantizeError(
        f"{metadata.path}: a rotary scaling of kind {type(scaling).__name__} cannot be read back out of a "
        "GGUF file; start from the model's safetensors"
    )


def _short(value: float) -> float:
    """The decimal that a float32 was meant to be: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")
