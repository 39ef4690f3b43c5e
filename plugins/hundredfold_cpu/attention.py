"""The attention plugin over the native kernel: one call a layer, everything else prepared once a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    AttentionBatch,
    AttentionSpec,
    Encoding,
    KVCacheSpec,
    LayerCache,
    NativeCall,
    Reasons,
    own_cache,
)
from hundredfold_cpu.choice import BlockChoice
from hundredfold_cpu.elementwise import SUFFIXES
from hundredfold_cpu.library import INT, POINTER, Variant, best
from hundredfold_cpu.paged_cache import LANES, STORED, CpuLayerCache, bytes_per_block
from hundredfold_cpu.program import kept_call
from hundredfold_cpu.tiles import Scratch, Step, StepRecord, prepare_step

LONG = 1 << 24
"""Products of a query with a key from which on other Python threads may run during a call."""

UNLIMITED = 1 << 62
"""The window of a layer that has none."""

MOST_HEAD_DIM = 512
"""As in native/paged.h."""


class _Layer(ctypes.Structure):
    """``Layer`` of native/step.h."""

    _fields_ = (
        ("blocks", POINTER),
        ("sinks", POINTER),
        ("num_heads", INT),
        ("num_kv_heads", INT),
        ("head_dim", INT),
        ("block_size", INT),
        ("window", INT),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("sketches", POINTER),
    )


class CpuAttention:
    """Native paged attention on CPU. It keeps buffers for one step at a time."""

    name = "cpu"
    api_version = API_VERSION
    priority = 10

    def __init__(self, variant: Variant | None = None) -> None:
        self._variant = variant or best()
        self._scratch = Scratch()
        self._choice: BlockChoice | None = None
        self._kernels: dict[tuple[torch.dtype, Encoding, bool], Callable[..., None]] = {}

    def refuses(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """Takes every layer over a cache in main memory."""
        reasons = []
        if cache.device.type != "cpu":
            reasons.append(f"computes on CPUs, not on {cache.device.type}")
        if encoding not in STORED:
            known = ", ".join(sorted(known.value for known in STORED))
            reasons.append(f"reads caches in {known}, not in {encoding.value}")
        if cache.dtype not in SUFFIXES:
            reasons.append(f"computes float32 and bfloat16, not {cache.dtype}")
        if cache.block_size % LANES:
            reasons.append(f"block_size is {cache.block_size}, wanted is a multiple of {LANES}")
        if layer.head_dim > MOST_HEAD_DIM:
            reasons.append(f"takes head_dim up to {MOST_HEAD_DIM}, not {layer.head_dim}")
        if layer.num_heads % layer.num_kv_heads:
            reasons.append(f"{layer.num_heads} query heads are no multiple of {layer.num_kv_heads} kv heads")
        return reasons

    def varies(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """Never: runs of keys begin at a sequence's start and are joined in their order."""
        return []

    def bytes_per_block(self, cache: KVCacheSpec, encoding: Encoding) -> int:
        """Keys and values, padded to whole vectors, and their scales."""
        return bytes_per_block(cache, encoding)

    def allocate(self, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> CpuLayerCache:
        """One layer's cache."""
        return CpuLayerCache.allocate(cache, encoding, num_blocks)

    def plan(self, batch: AttentionBatch, cache: KVCacheSpec, encoding: Encoding) -> CpuPlannedAttention:
        """Keeps the batch; what depends on a layer's heads is prepared when the first such layer comes."""
        pairs = sum(q * k for q, k in zip(batch.query_lens, batch.seq_lens, strict=True))
        kernel = self._kernel(cache, encoding, pairs)
        return CpuPlannedAttention(batch, cache, self._scratch, kernel, self._choice)

    def capturing(self, cache: KVCacheSpec, encoding: Encoding) -> CpuCapturedAttention:
        """See ``hundredfold.plugin.CapturingAttention``."""
        name = f"attention_{SUFFIXES[cache.dtype]}_{encoding.value}"
        return CpuCapturedAttention(self._variant, name, cache, self._scratch, self._choice)

    def _kernel(self, cache: KVCacheSpec, encoding: Encoding, pairs: int) -> Callable[..., None]:
        release = pairs * cache.num_kv_heads * cache.head_dim > LONG
        key = (cache.dtype, encoding, release)
        kernel = self._kernels.get(key)
        if kernel is None:
            name = f"attention_{SUFFIXES[cache.dtype]}_{encoding.value}"
            p, i = POINTER, INT
            kernel = self._variant.function(name, p, p, p, i, p, i, p, i, p, release=release)
            self._kernels[key] = kernel
        return kernel


class CpuPlannedAttention:
    """A step, prepared."""

    def __init__(
        self,
        batch: AttentionBatch,
        cache: KVCacheSpec,
        scratch: Scratch,
        kernel: Callable[..., None],
        choice: BlockChoice | None,
    ) -> None:
        self._batch = batch
        self._cache = cache
        self._scratch = scratch
        self._kernel = kernel
        self._choice = choice
        self._steps: dict[tuple[int, int | None], Step] = {}

    def __call__(self, layer: AttentionSpec, cache: LayerCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write ``k`` and ``v``, then attend. Shapes as in the contract."""
        own = own_cache(cache, CpuLayerCache)
        key = (layer.num_heads, layer.sliding_window)
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = prepare_step(
                self._batch, self._cache, layer, self._scratch, self._choice
            )
        q, k, v = _dense(q), _dense(k), _dense(v)
        out = torch.empty((len(q), layer.num_heads * layer.head_dim), dtype=q.dtype)
        self._kernel(
            step.address,
            ctypes.byref(_layer(layer, own, self._cache)),
            q.data_ptr(),
            q.stride(0),
            k.data_ptr(),
            k.stride(0),
            v.data_ptr(),
            v.stride(0),
            out.data_ptr(),
        )
        return out


class CpuCapturedAttention:
    """Attention of a program: layers of a kind share a record, into which each step is written anew."""

    def __init__(
        self, variant: Variant, kernel: str, cache: KVCacheSpec, scratch: Scratch, choice: BlockChoice | None
    ) -> None:
        self._variant = variant
        self._choice = choice
        self._kernel = kernel
        self._cache = cache
        self._scratch = scratch
        self._kinds: dict[tuple[int, int | None], tuple[AttentionSpec, StepRecord]] = {}
        self._steps: list[Step] = []

    def capture(
        self, layer: AttentionSpec, cache: LayerCache, q: Tensor, k: Tensor, v: Tensor, out: Tensor
    ) -> NativeCall:
        """Heads of ``q``, ``k`` and ``v`` lie one after the other; tokens may lie apart."""
        own = _layer(layer, own_cache(cache, CpuLayerCache), self._cache)
        _, step = self._kinds.setdefault((layer.num_heads, layer.sliding_window), (layer, StepRecord()))
        records = (ctypes.addressof(step), ctypes.addressof(own))
        inputs = (q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0))
        held = (step, own, layer, cache, q, k, v, out)
        return kept_call(self._variant, self._kernel, *records, *inputs, out.data_ptr(), held=held)

    def prepare(self, batch: AttentionBatch) -> None:
        """Once for every kind of layer."""
        self._steps.clear()
        for layer, record in self._kinds.values():
            step = prepare_step(batch, self._cache, layer, self._scratch, self._choice)
            ctypes.memmove(ctypes.addressof(record), step.address, ctypes.sizeof(record))
            self._steps.append(step)


def _layer(layer: AttentionSpec, cache: CpuLayerCache, spec: KVCacheSpec) -> _Layer:
    # who has a window attends to all of it: nobody would read its sketches
    sinks, sketches = layer.sinks, None if layer.sliding_window is not None else cache.sketches
    return _Layer(
        cache.blocks.data_ptr(),
        None if sinks is None else sinks.data_ptr(),
        layer.num_heads,
        layer.num_kv_heads,
        layer.head_dim,
        spec.block_size,
        UNLIMITED if layer.sliding_window is None else layer.sliding_window,
        layer.scale,
        layer.softcap or 0.0,
        None if sketches is None else sketches.data_ptr(),
    )


def _dense(x: Tensor) -> Tensor:
    """Heads of a token one after the other; tokens may lie apart."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
