"""Llama 1 to 3.x, SmolLM2 and Mistral: plain layers, all alike; Mistral's may have a window."""

from __future__ import annotations

from dataclasses import replace

from hundredfold.models import GgufMetadata
from hundredfold.plugin import RotaryStyle
from hundredfold_worker.model.architectures.config_values import (
    activation_from_config,
    shape_from_config,
    window_from_config,
    windows_from_config,
)
from hundredfold_worker.model.architectures.gguf_shape import has_bias, shape_from_gguf, window_from_gguf
from hundredfold_worker.model.architectures.gguf_values import GgufSection
from hundredfold_worker.model.architectures.names import DescribedModel, gguf_names, hf_names
from hundredfold_worker.model.architectures.rope_config import rotary_from_config
from hundredfold_worker.model.architectures.rope_gguf import rotary_from_gguf
from hundredfold_worker.model.checkpoint import ConfigJson, MappedTensors
from hundredfold_worker.model.description import LayerDescription, MlpDescription


def from_config(config: ConfigJson) -> DescribedModel:
    """``LlamaForCausalLM``."""
    shape = shape_from_config(config, "LlamaForCausalLM", max_position=2048)
    bias = config.boolean("attention_bias", default=False)
    layer = LayerDescription(
        replace(shape.attention(rotary_from_config(config, shape)), qkv_bias=bias, output_bias=bias),
        MlpDescription(
            shape.intermediate_size,
            bias=config.boolean("mlp_bias", default=False),
            activation=activation_from_config(config),
        ),
    )
    return DescribedModel(shape.decoder([layer] * shape.num_layers), hf_names(shape.num_layers))


def mistral_from_config(config: ConfigJson) -> DescribedModel:
    """``MistralForCausalLM``: a window in every layer, unless it is null."""
    shape = shape_from_config(config, "MistralForCausalLM", max_position=131_072)
    attention = shape.attention(rotary_from_config(config, shape))
    mlp = MlpDescription(shape.intermediate_size, activation=activation_from_config(config))
    window = window_from_config(config, default=4096)
    windows = windows_from_config(config, shape.num_layers, window, lambda index: True)
    layers = [LayerDescription(replace(attention, sliding_window=window), mlp) for window in windows]
    return DescribedModel(shape.decoder(layers), hf_names(shape.num_layers))


def from_gguf(metadata: GgufMetadata, tensors: MappedTensors) -> DescribedModel:
    """``llama``, which Mistral's files call themselves, too. Query and key rows are ordered in pairs."""
    section = GgufSection(metadata, "llama")
    shape = shape_from_gguf(section, tensors)
    names = gguf_names(shape.num_layers)
    first = names.layers[0]
    attention = replace(
        shape.attention(rotary_from_gguf(section, tensors, shape, RotaryStyle.PAIRS)),
        qkv_bias=has_bias(tensors, *first.query_key_value),
        output_bias=has_bias(tensors, first.attention_output),
        sliding_window=window_from_gguf(section),
    )
    layer = LayerDescription(
        attention, MlpDescription(shape.intermediate_size, bias=has_bias(tensors, *first.gate_up, first.down))
    )
    return DescribedModel(shape.decoder([layer] * shape.num_layers), names)
