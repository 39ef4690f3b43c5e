"""The sizes that every decoder has, and how they become a description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hundredfold_worker.model.description import (
    AttentionDescription,
    DynamicScaling,
    LayerDescription,
    LinearScaling,
    ModelDescription,
    RotaryDescription,
    YarnScaling,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes, checked against each other."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    norm_eps: float
    tied_head: bool

    def attention(self, rotary: RotaryDescription | None) -> AttentionDescription:
        """Plain attention: no biases, no norms, no window."""
        return AttentionDescription(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            rotary=rotary,
        )

    def decoder(self, layers: Sequence[LayerDescription]) -> ModelDescription:
        """The decoder of these layers. How far it reaches is the most that a layer's scaling gives."""
        reaches = [_reach(layer.attention.rotary, self.max_position) for layer in layers]
        return ModelDescription(
            architecture=self.architecture,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            norm_eps=self.norm_eps,
            layers=tuple(layers),
            tied_head=self.tied_head,
            max_position=max(made_for for made_for, _ in reaches),
            longest=max(longest for _, longest in reaches),
        )


def _reach(rotary: RotaryDescription | None, max_position: int) -> tuple[int, int]:
    """Positions by default, and at most when asked. Other scalings are part of ``max_position`` already."""
    scaling = None if rotary is None else rotary.scaling
    match scaling:
        case YarnScaling(factor=factor, original_max_position=original):
            reach = max(max_position, int(original * factor))
            return reach, reach
        case DynamicScaling(factor=factor) | LinearScaling(factor=factor):
            return max_position, max(max_position, int(max_position * factor))
        case _:
            return max_position, max_position
