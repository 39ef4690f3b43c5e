"""Attention to a part: a drawn token takes its keys from the blocks that its bounds say matter most to it."""

from __future__ import annotations

from collections.abc import Mapping

from hundredfold.plugin import AttentionSpec, Encoding, KVCacheSpec, Reasons
from hundredfold_cpu.attention import CpuAttention
from hundredfold_cpu.choice import BlockChoice
from hundredfold_cpu.library import Variant
from hundredfold_cpu.paged_cache import CpuLayerCache, bounds_bytes, bytes_per_block

BOUNDED = frozenset({Encoding.FP32, Encoding.BF16, Encoding.INT8, Encoding.FP8, Encoding.FP8_E5M2})
"""Encodings whose blocks the native code bounds, see native/choice.h."""


class SparseAttention(CpuAttention):
    """Attention `cpu`; tokens that are drawn late in a sequence attend to the blocks that matter most."""

    name = "sparse"
    priority = -10

    def __init__(self, variant: Variant | None = None, choice: BlockChoice | None = None) -> None:
        super().__init__(variant)
        self._choice = choice or BlockChoice()

    @property
    def approximation(self) -> str:
        """See ``hundredfold.plugin.ApproximateAttention``."""
        return str(self._choice)

    def told(self, options: Mapping[str, str]) -> SparseAttention:
        """With ``keep``, ``least``, ``first`` and ``recent``, see ``BlockChoice``."""
        return SparseAttention(self._variant, BlockChoice.read(options))

    def refuses(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """What `cpu` refuses, and encodings whose keys it cannot bound. Layers with a window stay exact."""
        reasons = super().refuses(layer, cache, encoding)
        if not reasons and encoding not in BOUNDED:
            known = ", ".join(sorted(known.value for known in BOUNDED))
            reasons.append(f"bounds the keys of caches in {known}, not in {encoding.value}")
        return reasons

    def varies(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """A drawn token attends to less than a given one, and the prefix cache does not tell them apart."""
        return ["keys that an answer left in the prefix cache are not those of a prompt"]

    def bytes_per_block(self, cache: KVCacheSpec, encoding: Encoding) -> int:
        """With the bounds of its keys."""
        return bytes_per_block(cache, encoding) + bounds_bytes(cache)

    def allocate(self, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> CpuLayerCache:
        """One layer's cache with its bounds."""
        return CpuLayerCache.with_bounds(cache, encoding, num_blocks)
