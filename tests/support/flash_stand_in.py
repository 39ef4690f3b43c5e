"""flash-attn 2's two functions on any machine: its arguments and rules, the suite's reference inside."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hundredfold.plugin import AttentionSpec
from hundredfold.plugin.testing import reference_attention
from hundredfold_flash.library import Library


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    block_table: Tensor,
) -> Tensor:
    """``flash_attn_varlen_func``: queries [total, heads, head_dim] over paged keys and values."""
    for starts in (cu_seqlens_q, cu_seqlens_k):
        assert starts.dtype == torch.int32
        assert starts.shape == (len(block_table) + 1,)
    counts, lengths = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    assert sum(counts) == len(q)
    assert max_seqlen_q == max(counts)
    assert max_seqlen_k == max(lengths)
    rules = (softmax_scale, causal, window_size, softcap)
    return _paged(list(q.split(counts)), lengths, k, v, block_table, rules)


def with_cache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    block_table: Tensor,
) -> Tensor:
    """``flash_attn_with_kvcache`` without new keys: queries [rows, n, heads, head_dim]."""
    assert cache_seqlens.dtype == torch.int32
    assert cache_seqlens.shape == (len(q),)
    rules = (softmax_scale, causal, window_size, softcap)
    out = _paged(list(q), cache_seqlens.tolist(), k_cache, v_cache, block_table, rules)
    return out.view(q.shape)


def _paged(
    queries: Sequence[Tensor],
    lengths: list[int],
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    rules: tuple[float, bool, tuple[int, int], float],
) -> Tensor:
    scale, causal, (left, right), softcap = rules
    assert causal
    assert (left, right) == (-1, -1) or right == 0
    _, page, kv_heads, head_dim = keys.shape
    assert page % 256 == 0, "paged blocks are a multiple of 256"
    assert head_dim <= 256
    assert head_dim % 8 == 0
    assert tables.dtype == torch.int32
    assert tables.stride(-1) == 1
    rows = []
    for q, length, table in zip(queries, lengths, tables, strict=True):
        assert q.dtype == keys.dtype == values.dtype
        assert q.dtype in (torch.bfloat16, torch.float16)
        blocks = table[: -(-length // page)].long()
        own = (part[blocks].flatten(0, 1)[:length] for part in (keys, values))
        layer = AttentionSpec(
            num_heads=q.shape[1],
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            scale=scale,
            sliding_window=None if left < 0 else left + 1,
            softcap=softcap or None,
        )
        rows.append(reference_attention(layer, q, *own).to(q.dtype).view(q.shape))
    return torch.cat(rows)


STAND_IN = Library(varlen, with_cache, device_type="cpu")
