"""One decoder, described by data: what an architecture file reads from a checkpoint's configuration."""

from __future__ import annotations

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


RotaryScaling = LinearScaling | Llama3Scaling | DivisorScaling


@dataclass(frozen=True, slots=True)
class RotaryDescription:
    """Rotary embedding of queries and keys."""

    dim: int
    """Leading columns of a head that rotate; even."""
    theta: float
    style: RotaryStyle = RotaryStyle.HALVES
    scaling: RotaryScaling | None = None


@dataclass(frozen=True, slots=True)
class AttentionDescription:
    """Attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool = False
    output_bias: bool = False
    sliding_window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class MlpDescription:
    """Gated feed-forward part of one layer: ``down(activation(gate(x)) * up(x))``."""

    intermediate_size: int
    bias: bool = False
    activation: Activation = Activation.SILU


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One layer: norm, attention, residual, norm, feed-forward, residual."""

    attention: AttentionDescription
    mlp: MlpDescription


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A decoder, independent of where its weights come from."""

    architecture: str
    """The name in the checkpoint, such as ``LlamaForCausalLM`` or ``llama``."""
    vocab_size: int
    hidden_size: int
    norm_eps: float
    rotary: RotaryDescription
    layers: tuple[LayerDescription, ...]
    tied_head: bool
    max_position: int
    """Positions that the checkpoint was made for."""

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)
