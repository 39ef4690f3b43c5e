"""A model as a list of matrices with their sizes, which is all that memory and speed depend on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hundredfold.plugin import LayerRole, WeightForm

_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h|blocks|block)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Part:
    """One matrix, or several alike."""

    name: str
    """As transformers or GGUF call it, without ``.weight``."""
    rows: int
    columns: int
    role: LayerRole = LayerRole.LINEAR
    copies: int = 1
    """Experts, for one."""
    used: int = 1
    """How many of the copies a token goes through."""

    @property
    def layer(self) -> int | None:
        """The layer that it stands in; ``None`` before the first and after the last."""
        return layer_of(self.name)

    @property
    def count(self) -> int:
        """Weights of all copies."""
        return self.rows * self.columns * self.copies

    @property
    def multiplied(self) -> int:
        """Weights that one token is multiplied by."""
        return 0 if self.role is LayerRole.TABLE else self.rows * self.columns * self.used


Chooser = Callable[[Part], WeightForm]
"""Which form each part has."""


@dataclass(frozen=True, slots=True)
class AttentionCache:
    """What one layer keeps of a token."""

    heads: int
    """Keys, and as many values; 1 where a compressed vector is kept for all."""
    key_size: int
    value_size: int
    window: int | None = None
    """Tokens that it sees, the last one included; ``None`` for all."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A decoder's sizes."""

    architecture: str
    parts: tuple[Part, ...]
    vectors: int
    """Numbers in norms and biases, kept as float32."""
    caches: tuple[AttentionCache, ...]
    """By layer."""
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_position: int
    tied_head: bool
    rotated: int = 0
    """Numbers of a position in all tables of angles."""

    @property
    def num_layers(self) -> int:
        """Layers."""
        return len(self.caches)

    @property
    def num_parameters(self) -> int:
        """Weights, a tied table counted once."""
        tied = self.vocab_size * self.hidden_size if self.tied_head else 0
        return sum(part.count for part in self.parts) - tied + self.vectors

    @property
    def active_parameters(self) -> int:
        """Weights that one token is multiplied by, the output layer included."""
        return sum(part.multiplied for part in self.parts)

    @property
    def window(self) -> int | None:
        """The largest window, when every layer has one: what is older is free for others."""
        windows = [cache.window for cache in self.caches]
        known = [window for window in windows if window is not None]
        return max(known) if known and len(known) == len(windows) else None

    @property
    def windowed_layers(self) -> int:
        """Layers with a window."""
        return sum(cache.window is not None for cache in self.caches)


def layer_of(name: str) -> int | None:
    """The layer's number in a tensor's name."""
    found = _LAYER.search(name)
    return None if found is None else int(found.group(1))


def weights_of(parts: Sequence[Part]) -> int:
    """Weights of all parts."""
    return sum(part.count for part in parts)
