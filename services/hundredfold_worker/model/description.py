"""One decoder, described by data: what an architecture file reads from a checkpoint's configuration."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hundredfold.plugin import Activation, RotaryStyle

MAX_SIZE = 1 << 20
MAX_HEADS = 1 << 12
MAX_LAYERS = 1 << 12
MAX_VOCABULARY = 1 << 24
MAX_POSITIONS = 1 << 27
# Above any real model; they keep a hostile configuration from costing memory before a tensor contradicts it.


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every frequency divided by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies divided by ``factor``, high ones kept, those between blended (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class DivisorScaling:
    """Each frequency divided by its own number, as a GGUF ``rope_freqs`` tensor states it."""

    divisors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Frequencies that turn rarely divided by ``factor``, those that turn often kept, a ramp between."""

    factor: float
    original_max_position: int
    attention_factor: float
    """On cosines and sines."""
    beta_fast: float = 32.0
    """Turns within the original length from which on a frequency is kept."""
    beta_slow: float = 1.0
    """Turns up to which it is divided."""
    truncate: bool = True
    """Whether the ramp begins and ends at whole frequencies."""


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """A larger theta for a longer ``max_model_len`` than the original (dynamic NTK, fixed at load)."""

    factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class LongropeScaling:
    """Each frequency divided by its own number, of one list or the other by ``max_model_len`` (LongRoPE)."""

    short: tuple[float, ...]
    """For a ``max_model_len`` up to ``original_max_position``."""
    long: tuple[float, ...]
    original_max_position: int
    attention_factor: float
    """On cosines and sines, for both lists."""


RotaryScaling = (
    LinearScaling | Llama3Scaling | DivisorScaling | YarnScaling | DynamicScaling | LongropeScaling
)


@dataclass(frozen=True, slots=True)
class RotaryDescription:
    """Rotary embedding of queries and keys."""

    dim: int
    """Leading columns of a head that rotate; even."""
    theta: float
    style: RotaryStyle = RotaryStyle.HALVES
    scaling: RotaryScaling | None = None


@enum.unique
class QueryKeyNorm(enum.Enum):
    """What is normed together before queries and keys rotate."""

    HEAD = "head"
    """Each head by itself; all share one weight of a head's size."""
    PROJECTION = "projection"
    """All heads of a token."""


@dataclass(frozen=True, slots=True)
class AttentionDescription:
    """Attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rotary: RotaryDescription | None
    """``None`` where nothing rotates."""
    qkv_bias: bool = False
    output_bias: bool = False
    query_key_norm: QueryKeyNorm | None = None
    sliding_window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class MlpDescription:
    """Gated feed-forward part of one layer: ``down(activation(gate(x)) * up(x))``."""

    intermediate_size: int
    bias: bool = False
    activation: Activation = Activation.SILU


@enum.unique
class NormPlacement(enum.Enum):
    """Where the norms of attention and feed-forward stand; ``f`` is either."""

    BEFORE = "before"
    """``x + f(norm(x))``."""
    AFTER = "after"
    """``x + norm(f(x))``."""
    AROUND = "around"
    """``x + norm(f(norm(x)))``."""


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One layer: attention, then feed-forward, each added to what went in."""

    attention: AttentionDescription
    mlp: MlpDescription
    norms: NormPlacement = NormPlacement.BEFORE


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A decoder, independent of where its weights come from."""

    architecture: str
    """The name in the checkpoint, such as ``LlamaForCausalLM`` or ``llama``."""
    vocab_size: int
    hidden_size: int
    norm_eps: float
    layers: tuple[LayerDescription, ...]
    tied_head: bool
    max_position: int
    """Positions that the checkpoint was made for."""
    longest: int
    """Positions up to which its rotary scaling can be stretched when asked; at least ``max_position``."""
    embedding_scale: float = 1.0
    """On the embedding of each token, rounded to the compute type."""
    logit_softcap: float | None = None
    """Logits become ``cap * tanh(logit / cap)``."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def rotaries(self) -> tuple[RotaryDescription, ...]:
        """Every kind of rotation that a layer has."""
        kinds = (layer.attention.rotary for layer in self.layers)
        return tuple(dict.fromkeys(kind for kind in kinds if kind is not None))

    @property
    def sliding_window(self) -> int | None:
        """How many tokens, itself included, any layer lets a token see; ``None`` when one sees all."""
        windows = [layer.attention.sliding_window for layer in self.layers]
        known = [window for window in windows if window is not None]
        return max(known) if len(known) == len(windows) else None
