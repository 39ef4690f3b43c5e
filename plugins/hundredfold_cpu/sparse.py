"""Attention to a part: a drawn token takes its keys from the blocks that get most of its weight."""

from __future__ import annotations

from collections.abc import Mapping

from hundredfold.plugin import AttentionSpec, Encoding, KVCacheSpec, Reasons
from hundredfold_cpu.attention import CpuAttention
from hundredfold_cpu.choice import BlockChoice
from hundredfold_cpu.library import Variant
from hundredfold_cpu.paged_cache import CpuLayerCache, bytes_per_block, sketch_bytes


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

    def varies(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """A drawn token attends to less than a given one, and the prefix cache does not tell them apart."""
        return ["keys that an answer left in the prefix cache are not those of a prompt"]

    def bytes_per_block(self, cache: KVCacheSpec, encoding: Encoding) -> int:
        """With the sketches of its keys."""
        return bytes_per_block(cache, encoding) + sketch_bytes(cache)

    def allocate(self, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> CpuLayerCache:
        """One layer's cache with its sketches."""
        return CpuLayerCache.with_sketches(cache, encoding, num_blocks)
