"""The sizes of every decoder in GGUF's words."""

from __future__ import annotations

from hundredfold_worker.model.architectures.gguf_values import GgufSection
from hundredfold_worker.model.architectures.shape import Shape
from hundredfold_worker.model.checkpoint import MappedTensors
from hundredfold_worker.model.description import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE
from hundredfold_worker.model.errors import ModelLoadError


def shape_from_gguf(section: GgufSection, tensors: MappedTensors) -> Shape:
    """Sizes. The head is tied when there is no tensor for it. Raises ``ModelLoadError``."""
    if section.integer("expert_count", default=0, least=0, most=MAX_SIZE):
        raise ModelLoadError(
            f"{section.path}: '{section.architecture}.expert_count': mixtures of experts are not supported"
        )
    hidden = section.integer("embedding_length", most=MAX_SIZE)
    heads = section.same_in_every_layer("attention.head_count", most=MAX_HEADS)
    head_dim = section.integer("attention.key_length", default=hidden // heads, most=MAX_SIZE)
    if section.integer("attention.value_length", default=head_dim, most=MAX_SIZE) != head_dim:
        raise section.wrong("attention.value_length", f"equal to the key length, {head_dim}")
    kv_heads = section.same_in_every_layer("attention.head_count_kv", default=heads, most=heads)
    if heads % kv_heads:
        raise section.wrong("attention.head_count_kv", f"a divisor of the head count, {heads}")
    table = tensors.shape("token_embd.weight")
    if table is None:
        raise ModelLoadError(f"{section.path}: tensor 'token_embd.weight' is missing")
    return Shape(
        architecture=section.architecture,
        vocab_size=table[0],
        hidden_size=hidden,
        num_layers=section.integer("block_count", most=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=section.same_in_every_layer("feed_forward_length", most=MAX_SIZE),
        max_position=section.integer("context_length", most=MAX_POSITIONS),
        norm_eps=section.number("attention.layer_norm_rms_epsilon", default=1e-5),
        tied_head="output.weight" not in tensors.names(),
    )


def has_bias(tensors: MappedTensors, *names: str) -> bool:
    """Whether any of these parameters has a bias; GGUF does not say so elsewhere."""
    stored = tensors.names()
    return any(f"{name}.bias" in stored for name in names)


def window_from_gguf(section: GgufSection, default: int = 0) -> int | None:
    """``attention.sliding_window``: tokens that a token sees, with itself; 0 for all. Absent: ``default``."""
    return section.integer("attention.sliding_window", default=default, least=0, most=MAX_POSITIONS) or None
