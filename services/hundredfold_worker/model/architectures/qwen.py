"""Qwen 2 and 3: Qwen 2 has biases on queries, keys and values, Qwen 3 norms on queries and keys."""

from __future__ import annotations

from dataclasses import replace

from hundredfold.models import GgufMetadata
from hundredfold_worker.model.architectures.config_values import (
    activation_from_config,
    shape_from_config,
    window_from_config,
    windows_from_config,
)
from hundredfold_worker.model.architectures.gguf_shape import shape_from_gguf
from hundredfold_worker.model.architectures.gguf_values import GgufSection
from hundredfold_worker.model.architectures.names import (
    GGUF_LAYER,
    HF_LAYER,
    DescribedModel,
    gguf_names,
    hf_names,
)
from hundredfold_worker.model.architectures.rope_config import rotary_from_config
from hundredfold_worker.model.architectures.rope_gguf import rotary_from_gguf
from hundredfold_worker.model.architectures.shape import Shape
from hundredfold_worker.model.checkpoint import ConfigJson, MappedTensors
from hundredfold_worker.model.description import (
    MAX_LAYERS,
    AttentionDescription,
    LayerDescription,
    MlpDescription,
    ModelDescription,
    QueryKeyNorm,
)


def qwen2_from_config(config: ConfigJson) -> DescribedModel:
    """``Qwen2ForCausalLM``."""
    shape = shape_from_config(config, "Qwen2ForCausalLM", max_position=32_768)
    attention = replace(shape.attention(rotary_from_config(config, shape)), qkv_bias=True)
    return DescribedModel(_decoder(config, shape, attention), hf_names(shape.num_layers))


def qwen3_from_config(config: ConfigJson) -> DescribedModel:
    """``Qwen3ForCausalLM``."""
    shape = shape_from_config(config, "Qwen3ForCausalLM", max_position=32_768, head_dim=128)
    bias = config.boolean("attention_bias", default=False)
    attention = replace(
        shape.attention(rotary_from_config(config, shape)),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm.HEAD,
    )
    layer = replace(HF_LAYER, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
    return DescribedModel(_decoder(config, shape, attention), hf_names(shape.num_layers, layer))


def qwen2_from_gguf(metadata: GgufMetadata, tensors: MappedTensors) -> DescribedModel:
    """``qwen2``."""
    section = GgufSection(metadata, "qwen2")
    shape = shape_from_gguf(section, tensors)
    attention = replace(shape.attention(rotary_from_gguf(section, tensors, shape)), qkv_bias=True)
    layer = LayerDescription(attention, MlpDescription(shape.intermediate_size))
    return DescribedModel(shape.decoder([layer] * shape.num_layers), gguf_names(shape.num_layers))


def qwen3_from_gguf(metadata: GgufMetadata, tensors: MappedTensors) -> DescribedModel:
    """``qwen3``."""
    section = GgufSection(metadata, "qwen3")
    shape = shape_from_gguf(section, tensors)
    rotary = rotary_from_gguf(section, tensors, shape)
    attention = replace(shape.attention(rotary), query_key_norm=QueryKeyNorm.HEAD)
    layer = LayerDescription(attention, MlpDescription(shape.intermediate_size))
    names = replace(GGUF_LAYER, query_norm="attn_q_norm", key_norm="attn_k_norm")
    return DescribedModel(shape.decoder([layer] * shape.num_layers), gguf_names(shape.num_layers, names))


def _decoder(config: ConfigJson, shape: Shape, attention: AttentionDescription) -> ModelDescription:
    """Layers of which the last ones have a window, if windows are used at all."""
    window = None
    if config.boolean("use_sliding_window", default=False):
        window = window_from_config(config, default=4096)
    first = config.integer("max_window_layers", default=28, least=0, most=MAX_LAYERS)
    windows = windows_from_config(config, shape.num_layers, window, lambda index: index >= first)
    mlp = MlpDescription(shape.intermediate_size, activation=activation_from_config(config))
    return shape.decoder([LayerDescription(replace(attention, sliding_window=own), mlp) for own in windows])
