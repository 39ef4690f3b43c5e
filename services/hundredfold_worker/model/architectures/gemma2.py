"""Gemma 2: scores and logits are capped, every other layer has a window."""

from __future__ import annotations

from dataclasses import replace

from hundredfold.models import GgufMetadata
from hundredfold.plugin import Activation
from hundredfold_worker.model.architectures.config_values import (
    activation_from_config,
    shape_from_config,
    window_from_config,
    windows_from_config,
)
from hundredfold_worker.model.architectures.gemma import (
    GGUF_GEMMA,
    HF_GEMMA,
    NORM_OFFSET,
    gemma_decoder,
    scale_from_config,
    scale_from_gguf,
    softcap_from_config,
    softcap_from_gguf,
)
from hundredfold_worker.model.architectures.gguf_shape import shape_from_gguf, window_from_gguf
from hundredfold_worker.model.architectures.gguf_values import GgufSection
from hundredfold_worker.model.architectures.names import DescribedModel, gguf_names, hf_names
from hundredfold_worker.model.architectures.rope_config import rotary_from_config
from hundredfold_worker.model.architectures.rope_gguf import rotary_from_gguf
from hundredfold_worker.model.checkpoint import ConfigJson, MappedTensors
from hundredfold_worker.model.description import MlpDescription

SCORE_CAP, LOGIT_CAP, WINDOW, LAYERS_OF_27B = 50.0, 30.0, 4096, 46


def from_config(config: ConfigJson) -> DescribedModel:
    """``Gemma2ForCausalLM``."""
    shape = shape_from_config(config, "Gemma2ForCausalLM", max_position=8192, head_dim=256, tied_head=True)
    bias = config.boolean("attention_bias", default=False)
    attention = replace(
        shape.attention(rotary_from_config(config, shape)),
        scale=scale_from_config(config),
        softcap=softcap_from_config(config, "attn_logit_softcapping", SCORE_CAP),
        qkv_bias=bias,
        output_bias=bias,
    )
    window = window_from_config(config, default=WINDOW)
    windows = windows_from_config(config, shape.num_layers, window, lambda index: index % 2 == 0)
    mlp = MlpDescription(
        shape.intermediate_size,
        activation=activation_from_config(config, "hidden_activation", "gelu_pytorch_tanh"),
    )
    decoder = gemma_decoder(
        shape,
        [replace(attention, sliding_window=own) for own in windows],
        mlp,
        softcap_from_config(config, "final_logit_softcapping", LOGIT_CAP),
    )
    return DescribedModel(decoder, hf_names(shape.num_layers, HF_GEMMA, norm_offset=NORM_OFFSET))


def from_gguf(metadata: GgufMetadata, tensors: MappedTensors) -> DescribedModel:
    """``gemma2``."""
    section = GgufSection(metadata, "gemma2")
    shape = shape_from_gguf(section, tensors)
    attention = replace(
        shape.attention(rotary_from_gguf(section, tensors, shape)),
        scale=scale_from_gguf(shape, LAYERS_OF_27B),
        softcap=softcap_from_gguf(section, "attn_logit_softcapping", SCORE_CAP),
    )
    window = window_from_gguf(section, default=WINDOW)
    windows = [window if index % 2 == 0 else None for index in range(shape.num_layers)]
    decoder = gemma_decoder(
        shape,
        [replace(attention, sliding_window=own) for own in windows],
        MlpDescription(shape.intermediate_size, activation=Activation.GELU_TANH),
        softcap_from_gguf(section, "final_logit_softcapping", LOGIT_CAP),
    )
    return DescribedModel(decoder, gguf_names(shape.num_layers, GGUF_GEMMA))
