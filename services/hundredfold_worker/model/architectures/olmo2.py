"""OLMo 2: norms after attention and feed-forward, and over the whole of queries and keys."""

from __future__ import annotations

from dataclasses import replace

from hundredfold.models import GgufMetadata
from hundredfold_worker.model.architectures.config_values import activation_from_config, shape_from_config
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
from hundredfold_worker.model.checkpoint import ConfigJson, MappedTensors
from hundredfold_worker.model.description import (
    LayerDescription,
    MlpDescription,
    NormPlacement,
    QueryKeyNorm,
)


def from_config(config: ConfigJson) -> DescribedModel:
    """``Olmo2ForCausalLM``."""
    shape = shape_from_config(config, "Olmo2ForCausalLM", max_position=2048, norm_eps=1e-5)
    bias = config.boolean("attention_bias", default=False)
    attention = replace(
        shape.attention(rotary_from_config(config, shape)),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm.PROJECTION,
    )
    mlp = MlpDescription(shape.intermediate_size, activation=activation_from_config(config))
    layer = LayerDescription(attention, mlp, NormPlacement.AFTER)
    names = replace(
        HF_LAYER,
        attention_norm=None,
        attention_post_norm="post_attention_layernorm",
        mlp_norm=None,
        mlp_post_norm="post_feedforward_layernorm",
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
    )
    return DescribedModel(shape.decoder([layer] * shape.num_layers), hf_names(shape.num_layers, names))


def from_gguf(metadata: GgufMetadata, tensors: MappedTensors) -> DescribedModel:
    """``olmo2``."""
    section = GgufSection(metadata, "olmo2")
    shape = shape_from_gguf(section, tensors)
    rotary = rotary_from_gguf(section, tensors, shape)
    attention = replace(shape.attention(rotary), query_key_norm=QueryKeyNorm.PROJECTION)
    layer = LayerDescription(attention, MlpDescription(shape.intermediate_size), NormPlacement.AFTER)
    names = replace(
        GGUF_LAYER,
        attention_norm=None,
        attention_post_norm="post_attention_norm",
        mlp_norm=None,
        mlp_post_norm="post_ffw_norm",
        query_norm="attn_q_norm",
        key_norm="attn_k_norm",
    )
    return DescribedModel(shape.decoder([layer] * shape.num_layers), gguf_names(shape.num_layers, names))
