"""What the config.json of every decoder says in the same words: sizes, activation, windows."""

from __future__ import annotations

from collections.abc import Callable

from hundredfold.plugin import Activation
from hundredfold_worker.model.architectures.shape import Shape
from hundredfold_worker.model.checkpoint import ConfigJson
from hundredfold_worker.model.description import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_SIZE,
    MAX_VOCABULARY,
)

ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
"""By the names of the transformers library."""

_SLIDING, _FULL = "sliding_attention", "full_attention"


def shape_from_config(
    config: ConfigJson,
    architecture: str,
    *,
    max_position: int,
    norm_eps: float = 1e-6,
    head_dim: int | None = None,
    tied_head: bool = False,
) -> Shape:
    """Sizes; the arguments are what the architecture's configuration class takes where the file is silent.

    Without a ``head_dim`` here or there it is the hidden size by the heads. Raises ``ModelLoadError``.
    """
    hidden = config.integer("hidden_size", most=MAX_SIZE)
    heads = config.integer("num_attention_heads", most=MAX_HEADS)
    if head_dim is None and not config.has("head_dim") and hidden % heads:
        raise config.wrong("hidden_size", f"a multiple of num_attention_heads, {heads}, without a head_dim")
    kv_heads = config.integer("num_key_value_heads", default=heads, most=heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
    return Shape(
        architecture=architecture,
        vocab_size=config.integer("vocab_size", most=MAX_VOCABULARY),
        hidden_size=hidden,
        num_layers=config.integer("num_hidden_layers", most=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=config.integer("head_dim", default=head_dim or hidden // heads, most=MAX_SIZE),
        intermediate_size=config.integer("intermediate_size", most=MAX_SIZE),
        max_position=config.integer("max_position_embeddings", default=max_position, most=MAX_POSITIONS),
        norm_eps=config.number("rms_norm_eps", default=norm_eps),
        tied_head=config.boolean("tie_word_embeddings", default=tied_head),
    )


def activation_from_config(config: ConfigJson, key: str = "hidden_act", default: str = "silu") -> Activation:
    """The gate's function. Raises ``ModelLoadError`` when it is unknown."""
    found = ACTIVATIONS.get(config.string(key, default=default))
    if found is None:
        raise config.wrong(key, f"one of {', '.join(ACTIVATIONS)}")
    return found


def window_from_config(config: ConfigJson, default: int | None = None) -> int | None:
    """``sliding_window``: tokens that a token sees, itself included; null for all. Absent is ``default``."""
    if config.is_null("sliding_window") or (default is None and not config.has("sliding_window")):
        return None
    return config.integer("sliding_window", default=default, most=MAX_POSITIONS)


def windows_from_config(
    config: ConfigJson, num_layers: int, window: int | None, slides: Callable[[int], bool]
) -> list[int | None]:
    """Each layer's window: as ``layer_types`` says, and where that is absent by ``slides`` of the index."""
    kinds = config.values.get("layer_types")
    if kinds is None:
        return [window if slides(index) else None for index in range(num_layers)]
    known = isinstance(kinds, list) and all(kind in (_SLIDING, _FULL) for kind in kinds)
    if not known or len(kinds) != num_layers:
        raise config.wrong("layer_types", f"{num_layers} times {_SLIDING} or {_FULL}")
    if window is None and _SLIDING in kinds:
        raise config.wrong("sliding_window", f"a number, because layer_types has {_SLIDING}")
    return [window if kind == _SLIDING else None for kind in kinds]
