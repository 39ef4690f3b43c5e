"""What an attention plugin that was named keeps of a token: it is asked, as at the start of a worker."""

from __future__ import annotations

from functools import cache

from hundredfold.errors import StartError
from hundredfold.plugin import AttentionPlugin, AttentionSpec, Encoding, KVCacheSpec
from hundredfold.plugin.registry import PluginError, Registry
from hundredfold_worker.estimate.formats import asking
from hundredfold_worker.estimate.parts import AttentionCache
from hundredfold_worker.estimate.resident import CacheBytes


def of_attention(name: str, device: str, dtype: str, block_size: int, num_layers: int) -> CacheBytes:
    """Bytes of a token in a layer. Raises ``StartError`` when the plugin is not there; what returns, too."""
    import torch  # attention plugins need it

    try:
        plugin: AttentionPlugin = Registry("hundredfold.attention").get(name)
    except PluginError as error:
        raise StartError(str(error)) from error
    computed = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]

    @cache
    def size(layer: AttentionCache, encoding: Encoding) -> int:
        if layer.key_size != layer.value_size:
            raise StartError(
                f"attention '{name}': keys have {layer.key_size} numbers, values {layer.value_size}; "
                "attention plugins keep as many of both"
            )
        spec = KVCacheSpec(
            num_layers, layer.heads, layer.key_size, block_size, torch.device(device), computed
        )
        query = AttentionSpec(layer.heads, layer.heads, layer.key_size, layer.key_size**-0.5, layer.window)
        reasons = asking(name, lambda: plugin.refuses(query, spec, encoding))
        if reasons:
            raise StartError(f"attention '{name}': {', '.join(reasons)}")
        return asking(name, lambda: plugin.bytes_per_block(spec, encoding)) // block_size

    return size
