"""The paged cache of a model: its size per block, and its allocation."""

from __future__ import annotations

from dataclasses import dataclass

from hundredfold.plugin import AttentionPlugin, Encoding, KVCacheSpec
from hundredfold_worker.model.description import ModelDescription
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.loaded import PagedCache


@dataclass(frozen=True, slots=True)
class BackendCachePlanner:
    """Cache of the chosen encoding in the chosen backend's layout."""

    attention: AttentionPlugin
    spec: KVCacheSpec
    encoding: Encoding

    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, scales included."""
        return self.attention.bytes_per_block(self.spec, self.encoding) * self.spec.num_layers

    def allocate(self, num_blocks: int) -> PagedCache:
        """A cache of ``num_blocks`` blocks."""
        layers = tuple(
            self.attention.allocate(self.spec, self.encoding, num_blocks) for _ in range(self.spec.num_layers)
        )
        return PagedCache(layers, num_blocks, self.spec.block_size)


def heads_of_cache(description: ModelDescription) -> tuple[int, int]:
    """Key heads and head size, which all layers have to share: a block has one size."""
    shapes = {(layer.attention.num_kv_heads, layer.attention.head_dim) for layer in description.layers}
    if len(shapes) != 1:
        raise ModelLoadError(
            f"layers with different key heads or head sizes are not supported; found {sorted(shapes)}"
        )
    return shapes.pop()
