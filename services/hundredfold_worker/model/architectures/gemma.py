"""What Gemma 2 and 3 share: norms around each part, stored less one; a scaled embedding; a tied head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hundredfold_worker.model.architectures.gguf_values import GgufSection
from hundredfold_worker.model.architectures.names import GGUF_LAYER, HF_LAYER
from hundredfold_worker.model.architectures.shape import Shape
from hundredfold_worker.model.checkpoint import ConfigJson
from hundredfold_worker.model.description import (
    MAX_SIZE,
    AttentionDescription,
    LayerDescription,
    MlpDescription,
    ModelDescription,
    NormPlacement,
)

HF_GEMMA = replace(
    HF_LAYER,
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)
GGUF_GEMMA = replace(GGUF_LAYER, attention_post_norm="post_attention_norm", mlp_post_norm="post_ffw_norm")
NORM_OFFSET = 1.0
"""Of safetensors; GGUF's converter has added it."""


def gemma_decoder(
    shape: Shape, attention: Sequence[AttentionDescription], mlp: MlpDescription, logit_softcap: float | None
) -> ModelDescription:
    """The decoder. Its positions are what the file says: scaling is part of them."""
    plain = shape.decoder([LayerDescription(own, mlp, NormPlacement.AROUND) for own in attention])
    return replace(
        plain,
        longest=plain.max_position,
        embedding_scale=shape.hidden_size**0.5,
        logit_softcap=logit_softcap,
    )


def scale_from_config(config: ConfigJson) -> float:
    """On scores. Raises ``ModelLoadError``, also for a model that sees what comes after."""
    if config.boolean("use_bidirectional_attention", default=False):
        raise config.wrong("use_bidirectional_attention", "false")
    return float(config.integer("query_pre_attn_scalar", default=256, most=MAX_SIZE) ** -0.5)


def softcap_from_config(config: ConfigJson, key: str, default: float | None) -> float | None:
    """A cap; null for none. Absent is ``default``."""
    if config.is_null(key) or (default is None and not config.has(key)):
        return None
    return config.number(key, default=default)


def scale_from_gguf(shape: Shape, layers_of_27b: int) -> float:
    """On scores. The files do not say it: only the 27B models differ, and are known by their layers."""
    if shape.num_layers == layers_of_27b:
        return float((shape.hidden_size // shape.num_heads) ** -0.5)
    return float(shape.head_dim**-0.5)


def softcap_from_gguf(section: GgufSection, key: str, default: float | None) -> float | None:
    """A cap; absent is ``default``."""
    if default is None and not section.has(key):
        return None
    return section.number(key, default=default or 0.0)
