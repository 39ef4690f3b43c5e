"""The attention contract: owns the cache's layout and computes one call over a flat batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from hundredfold.plugin.kv_cache import Encoding, KVCacheSpec
from hundredfold.plugin.reasons import PROMISES_NOTHING, Reasons

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Factor on the scores, usually ``head_dim ** -0.5``."""
    sliding_window: int | None = None
    """A token sees itself and this many less one before it; ``None`` sees all."""
    softcap: float | None = None
    """Scores become ``softcap * tanh(score / softcap)`` before the mask."""
    sinks: Tensor | None = None
    """float32[num_heads]: a score without a value that joins the softmax; ``None`` for none."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """A step's rows, flat. Row ``i`` owns queries ``query_starts[i]:query_starts[i + 1]``; they are the last
    ``query_lens[i]`` of its ``seq_lens[i]`` tokens. Lists are on the host, tensors on the device.
    """

    query_lens: list[int]
    seq_lens: list[int]
    """Tokens in the cache after this step's were written."""
    block_tables: Tensor
    """int32[rows, most blocks of a row]; entries past a row's length are any valid block."""
    slot_mapping: Tensor
    """int64[tokens]: ``block * block_size + offset`` where each token's key and value go."""
    positions: Tensor
    """int64[tokens]: each token's position in its sequence."""
    prompt_lens: list[int] | None = None
    """Leading tokens of each row's sequence that were given and not drawn: a backend that leaves keys out for
    drawn tokens goes by it. ``None`` where nobody knows; a row of one query then counts as drawn."""


class LayerCache(Protocol):
    """One layer's keys and values, in the backend's layout."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole layer."""

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks; both int64[n]."""


@dataclass(frozen=True, slots=True)
class KeysAndValues:
    """A ``LayerCache`` of two tensors, to build on: a block is a row of each."""

    keys: Tensor
    values: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks; every source is read before a destination is written."""
        for part in (self.keys, self.values):
            part.index_copy_(0, destination, part.index_select(0, source))


Own = TypeVar("Own")


def own_cache(cache: LayerCache, kind: type[Own]) -> Own:
    """``cache``, which a backend was handed and has to be one of its own. Raises ``TypeError``."""
    if not isinstance(cache, kind):
        raise TypeError(f"this backend reads its own caches, not {type(cache).__name__}")
    return cache


class PlannedAttention(Protocol):
    """A step's metadata, prepared once and used by every layer."""

    def __call__(self, layer: AttentionSpec, cache: LayerCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write ``k`` and ``v`` [tokens, num_kv_heads, head_dim] to the cache, then attend with ``q``
        [tokens, num_heads, head_dim]. Returns [tokens, num_heads * head_dim]. All are rotated.
        """


class AttentionPlugin(Protocol):
    """Group ``hundredfold.attention``."""

    name: str
    api_version: int
    priority: int
    """Higher is asked first; the torch backend has 0."""

    def refuses(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """Why this backend cannot compute the layer over such a cache; empty when it can."""

    def bytes_per_block(self, cache: KVCacheSpec, encoding: Encoding) -> int:
        """Bytes of one block in one layer, scales included."""

    def allocate(self, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> LayerCache:
        """One layer's cache."""

    def plan(self, batch: AttentionBatch, cache: KVCacheSpec, encoding: Encoding) -> PlannedAttention:
        """Prepare a step."""


@runtime_checkable
class InvariantAttention(Protocol):
    """An ``AttentionPlugin`` that gives tokens of some layers the same bits whatever sequences are computed
    beside them, and however a prompt is cut into steps.
    """

    def varies(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """Why a token's bits may depend on either; empty where they never do."""


def variance_reasons(
    plugin: AttentionPlugin, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding
) -> Reasons:
    """Why ``plugin`` is not taken where the same bits are asked for; empty when it promises them."""
    if not isinstance(plugin, InvariantAttention):
        return [PROMISES_NOTHING]
    return plugin.varies(layer, cache, encoding)


@runtime_checkable
class ApproximateAttention(Protocol):
    """An ``AttentionPlugin`` that leaves something out: it is taken only when it is asked for by name."""

    @property
    def approximation(self) -> str:
        """What it leaves out, in a few words, with the options in force."""

    def told(self, options: Mapping[str, str]) -> AttentionPlugin:
        """The plugin as these options want it. Raises ``ValueError`` naming option, value and limit."""
