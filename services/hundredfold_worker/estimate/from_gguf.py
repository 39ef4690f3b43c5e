"""A decoder's sizes and forms from the header of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hundredfold.errors import StartError
from hundredfold.models import GgufMetadata
from hundredfold.plugin import LayerRole
from hundredfold_worker.estimate.parts import AttentionCache, Outline, Part

EMBEDDING, HEAD = "token_embd", "output"
MOST_LAYERS = 4096


def outline_of(metadata: GgufMetadata) -> Outline:
    """Sizes. Raises ``StartError`` naming the key or tensor."""
    architecture = metadata.string("general.architecture") or "unknown"
    table = metadata.tensors.get(f"{EMBEDDING}.weight")
    if table is None or len(table.shape) != 2:
        raise StartError(f"{metadata.path}: tensor '{EMBEDDING}.weight' is missing; this is no decoder")
    tied = f"{HEAD}.weight" not in metadata.tensors
    vocabulary, hidden = table.shape
    experts_used = metadata.integer(f"{architecture}.expert_used_count") or 1
    parts: list[Part] = []
    vectors = 0
    for name, tensor in metadata.tensors.items():
        if len(tensor.shape) < 2:
            vectors += int(np.prod(tensor.shape))
            continue
        parts.append(_part(name.removesuffix(".weight"), tensor.shape, experts_used))
    if tied:
        parts.append(Part(HEAD, vocabulary, hidden, LayerRole.HEAD))
    caches = tuple(_caches(metadata, architecture, hidden))
    inner = max((part.rows for part in parts if part.role is LayerRole.LINEAR), default=hidden)
    head_dim = caches[0].key_size
    return Outline(
        architecture=architecture,
        parts=tuple(parts),
        vectors=vectors,
        caches=caches,
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position=metadata.integer(f"{architecture}.context_length") or 2048,
        tied_head=tied,
        rotated=(metadata.integer(f"{architecture}.rope.dimension_count") or head_dim)
        * (2 if architecture == "gemma3" else 1),
    )


def _part(name: str, shape: tuple[int, ...], experts_used: int) -> Part:
    role = {EMBEDDING: LayerRole.TABLE, HEAD: LayerRole.HEAD}.get(name, LayerRole.LINEAR)
    copies = int(np.prod(shape[:-2]))
    return Part(name, shape[-2], shape[-1], role, copies, min(experts_used, copies))


def _caches(metadata: GgufMetadata, architecture: str, hidden: int) -> Iterator[AttentionCache]:
    layers = metadata.integer(f"{architecture}.block_count")
    if layers is None or not 1 <= layers <= MOST_LAYERS:
        raise StartError(f"{metadata.path}: '{architecture}.block_count' is {layers}")
    heads = _by_layer(metadata, f"{architecture}.attention.head_count", layers, None)
    kv_heads = _by_layer(metadata, f"{architecture}.attention.head_count_kv", layers, heads)
    size = metadata.integer(f"{architecture}.attention.key_length") or hidden // max(1, heads[0])
    value = metadata.integer(f"{architecture}.attention.value_length") or size
    windows = _windows(metadata, architecture, layers)
    for count, window in zip(kv_heads, windows, strict=True):
        yield AttentionCache(count, size, value, window)


def _by_layer(metadata: GgufMetadata, key: str, layers: int, default: list[int] | None) -> list[int]:
    value = metadata.values.get(key)
    if isinstance(value, np.ndarray):
        if len(value) != layers:
            raise StartError(f"{metadata.path}: '{key}' has {len(value)} entries for {layers} layers")
        return [int(entry) for entry in value.tolist()]
    found = metadata.integer(key)
    if found is None:
        if default is None:
            raise StartError(f"{metadata.path}: '{key}' is missing")
        return default
    return [found] * layers


def _windows(metadata: GgufMetadata, architecture: str, layers: int) -> list[int | None]:
    window = metadata.integer(f"{architecture}.attention.sliding_window")
    window = 4096 if window is None and architecture == "gemma2" else window
    if not window:
        return [None] * layers
    pattern = metadata.values.get(f"{architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray) and len(pattern) == layers:
        return [window if slides else None for slides in pattern.tolist()]
    every = (
        pattern if isinstance(pattern, int) else {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}.get(architecture)
    )
    if every is None:
        return [window] * layers
    return [window if (index + 1) % max(1, every) else None for index in range(layers)]
