"""Phi-3: queries, keys and values in one tensor, gate and up in another; longrope for its long variants."""

from __future__ import annotations

from dataclasses import replace

from hundredfold.models import GgufMetadata
from hundredfold_worker.model.architectures.config_values import (
    activation_from_config,
    shape_from_config,
    window_from_config,
)
from hundredfold_worker.model.architectures.gguf_shape import shape_from_gguf, window_from_gguf
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
from hundredfold_worker.model.description import LayerDescription, MlpDescription

ALSO_CALLED = {"su": "longrope", "yarn": "longrope"}
"""What the first Phi-3 checkpoints called their scaling."""


def from_config(config: ConfigJson) -> DescribedModel:
    """``Phi3ForCausalLM``."""
    shape = shape_from_config(config, "Phi3ForCausalLM", max_position=4096, norm_eps=1e-5)
    rotary = rotary_from_config(config, shape, also_called=ALSO_CALLED)
    layer = LayerDescription(
        replace(shape.attention(rotary), sliding_window=window_from_config(config)),
        MlpDescription(shape.intermediate_size, activation=activation_from_config(config)),
    )
    names = replace(HF_LAYER, query_key_value=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
    return DescribedModel(shape.decoder([layer] * shape.num_layers), hf_names(shape.num_layers, names))


def from_gguf(metadata: GgufMetadata, tensors: MappedTensors) -> DescribedModel:
    """``phi3``. Gate and up are stored under the name of up."""
    section = GgufSection(metadata, "phi3")
    shape = shape_from_gguf(section, tensors)
    attention = replace(
        shape.attention(rotary_from_gguf(section, tensors, shape)), sliding_window=window_from_gguf(section)
    )
    layer = LayerDescription(attention, MlpDescription(shape.intermediate_size))
    names = replace(GGUF_LAYER, query_key_value=("attn_qkv",), gate_up=("ffn_up",))
    return DescribedModel(shape.decoder([layer] * shape.num_layers), gguf_names(shape.num_layers, names))
