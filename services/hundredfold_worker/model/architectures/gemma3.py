"""Gemma 3 (text): five of six layers have a window and a theta of their own; queries and keys are normed."""

from __future__ import annotations

from collections.abc import Sequence
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
from hundredfold_worker.model.architectures.rope_config import rotary_of
from hundredfold_worker.model.architectures.rope_gguf import rotary_from_gguf
from hundredfold_worker.model.architectures.shape import Shape
from hundredfold_worker.model.checkpoint import ConfigJson, MappedTensors
from hundredfold_worker.model.description import (
    MAX_LAYERS,
    AttentionDescription,
    MlpDescription,
    QueryKeyNorm,
    RotaryDescription,
)

WINDOW, PATTERN, LAYERS_OF_27B = 4096, 6, 62
THETA, LOCAL_THETA = 1_000_000.0, 10_000.0


def from_config(config: ConfigJson) -> DescribedModel:
    """``Gemma3ForCausalLM``."""
    shape = shape_from_config(config, "Gemma3ForCausalLM", max_position=131_072, head_dim=256, tied_head=True)
    if config.has("attn_logit_softcapping"):
        raise config.wrong("attn_logit_softcapping", "null: no Gemma 3 caps its scores")
    bias = config.boolean("attention_bias", default=False)
    rotary, local = _rotaries(config, shape)
    attention = replace(
        shape.attention(rotary),
        scale=scale_from_config(config),
        qkv_bias=bias,
        output_bias=bias,
        query_key_norm=QueryKeyNorm.HEAD,
    )
    every = config.integer("sliding_window_pattern", default=PATTERN, most=MAX_LAYERS)
    window = window_from_config(config, default=WINDOW)
    windows = windows_from_config(config, shape.num_layers, window, lambda index: bool((index + 1) % every))
    mlp = MlpDescription(
        shape.intermediate_size,
        activation=activation_from_config(config, "hidden_activation", "gelu_pytorch_tanh"),
    )
    cap = softcap_from_config(config, "final_logit_softcapping", None)
    decoder = gemma_decoder(shape, _windowed(attention, local, windows), mlp, cap)
    names = replace(HF_GEMMA, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
    return DescribedModel(decoder, hf_names(shape.num_layers, names, norm_offset=NORM_OFFSET))


def from_gguf(metadata: GgufMetadata, tensors: MappedTensors) -> DescribedModel:
    """``gemma3``."""
    section = GgufSection(metadata, "gemma3")
    shape = shape_from_gguf(section, tensors)
    rotary = rotary_from_gguf(section, tensors, shape)
    local = replace(
        rotary, theta=section.number("rope.freq_base_swa", default=LOCAL_THETA, above=1.0), scaling=None
    )
    attention = replace(
        shape.attention(rotary),
        scale=scale_from_gguf(shape, LAYERS_OF_27B),
        query_key_norm=QueryKeyNorm.HEAD,
    )
    window = window_from_gguf(section)
    slides = section.pattern("attention.sliding_window_pattern", default=PATTERN, count=shape.num_layers)
    decoder = gemma_decoder(
        shape,
        _windowed(attention, local, [window if own else None for own in slides]),
        MlpDescription(shape.intermediate_size, activation=Activation.GELU_TANH),
        softcap_from_gguf(section, "final_logit_softcapping", None),
    )
    names = replace(GGUF_GEMMA, query_norm="attn_q_norm", key_norm="attn_k_norm")
    return DescribedModel(decoder, gguf_names(shape.num_layers, names))


def _windowed(
    attention: AttentionDescription, local: RotaryDescription, windows: Sequence[int | None]
) -> list[AttentionDescription]:
    return [
        attention if window is None else replace(attention, sliding_window=window, rotary=local)
        for window in windows
    ]


def _rotaries(config: ConfigJson, shape: Shape) -> tuple[RotaryDescription, RotaryDescription]:
    """Of layers that see everything and of those with a window: one section each, or apart by key before."""
    theta = config.number("rope_theta", default=THETA, above=1.0)
    local_theta = config.number("rope_local_base_freq", default=LOCAL_THETA, above=1.0)
    both = config.section("rope_parameters")
    if both is None:
        full, local = config.section("rope_scaling"), None
    else:
        full, local = both.section("full_attention"), both.section("sliding_attention")
        if full is None and local is None and both.values:
            raise config.wrong("rope_parameters", "an object with full_attention and sliding_attention")
    return rotary_of(config, full, shape, theta), rotary_of(config, local, shape, local_theta)
