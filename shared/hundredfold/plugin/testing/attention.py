"""Attention backends against the naive reference: prefill, chunks, decode, and garbage not to be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from hundredfold.plugin import (
    ApproximateAttention,
    AttentionPlugin,
    AttentionSpec,
    Encoding,
    KVCacheSpec,
    variance_reasons,
)
from hundredfold.plugin.testing.company import check_company
from hundredfold.plugin.testing.paged import PagedSequences
from hundredfold.plugin.testing.report import Report, check_plugin, checked_reasons, require

_NUM_BLOCKS = 40

_LONG_PROMPT = (900, 1, 599)
"""Tokens of a prompt in pieces, longer than what an approximation may leave as it is."""

_TOLERANCE = {
    Encoding.FP32: 2e-5,
    Encoding.BF16: 1.5e-2,
    Encoding.INT8: 1e-3,
    Encoding.FP8: 1e-3,
    Encoding.FP8_E5M2: 1e-3,
    Encoding.INT4: 1e-3,
}
"""Largest ‖out - reference‖ / ‖reference‖ of a row; the reference knows what each encoding holds."""

_BF16_TOLERANCE = 1.5e-2


def check_attention(
    plugin: AttentionPlugin,
    *,
    device: str = "cpu",
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
    encodings: Sequence[Encoding] = tuple(Encoding),
    block_sizes: Sequence[int] = (16, 32),
) -> Report:
    """Compare ``plugin`` with the reference for each layer, type, encoding and block size it accepts.

    Lengths stand at, before and after block boundaries; every unused slot and padding block holds NaN;
    rows of all kinds share a batch; one row's NaN must stay its own. All tokens count as given ones, which an
    ``ApproximateAttention`` computes exactly, too: one of its layers reads a prompt of 1,500. A backend that
    says of a layer that no bits vary has to give a sequence the same bits among 1, 7, 64 and 256, a long one
    alone and beside seven, its prompt in one piece or in several: one layer for each type and encoding.
    Raises ``NonConformance``.
    """
    check_plugin("hundredfold.attention", plugin)
    report = Report()
    promised: set[tuple[Encoding, torch.dtype]] = set()
    for encoding in encodings:
        for dtype in dtypes:
            for block_size in block_sizes:
                for name, layer in _layers(torch.device(device)):
                    kind = str(dtype).removeprefix("torch.")
                    case = f"{name}, {kind}, {encoding.value} cache, blocks of {block_size}"
                    cache = KVCacheSpec(
                        1, layer.num_kv_heads, layer.head_dim, block_size, torch.device(device), dtype
                    )
                    reasons = checked_reasons(plugin, case, plugin.refuses(layer, cache, encoding))
                    if reasons:
                        report.refused[case] = reasons
                        continue
                    _check_layer(plugin, layer, cache, encoding, f"{plugin.name}, {case}")
                    if not report.accepted and isinstance(plugin, ApproximateAttention):
                        _check_long_prompt(plugin, layer, cache, encoding, f"{plugin.name}, {case}")
                    varies = checked_reasons(plugin, case, variance_reasons(plugin, layer, cache, encoding))
                    if not varies and (encoding, dtype) not in promised:
                        promised.add((encoding, dtype))
                        check_company(plugin, layer, cache, encoding, f"{plugin.name}, {case}")
                    report.accepted.append(case)
    require(bool(report.accepted), f"{plugin.name} refuses everything on {device}: {report.refused}")
    return report


def _layers(device: torch.device) -> Iterator[tuple[str, AttentionSpec]]:
    base = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=64, scale=64**-0.5)
    yield "grouped queries", base
    yield "a head each", replace(base, num_heads=2)
    yield "one key head", replace(base, num_heads=4, num_kv_heads=1)
    yield "head_dim 16", replace(base, head_dim=16, scale=0.25)
    yield "head_dim 80", replace(base, head_dim=80, scale=80**-0.5)
    yield "own scale", replace(base, scale=0.07)
    yield "window 5", replace(base, sliding_window=5)
    yield "window 33", replace(base, sliding_window=33)
    yield "softcap", replace(base, softcap=1.5)
    sinks = torch.tensor([0.0, 1.0, -2.0, 3.0, 0.5, 8.0], device=device)
    yield "sinks", replace(base, sinks=sinks)
    yield "window, softcap and sinks", replace(base, sliding_window=19, softcap=2.0, sinks=sinks)


def _limit(cache: KVCacheSpec, encoding: Encoding) -> float:
    limit = _TOLERANCE[encoding]
    return limit if cache.dtype is torch.float32 else max(limit, _BF16_TOLERANCE)


def _check_long_prompt(
    plugin: AttentionPlugin, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding, case: str
) -> None:
    num_blocks = sum(_LONG_PROMPT) // cache.block_size + 2
    paged = PagedSequences(plugin, layer, cache, encoding, num_blocks)
    prompt = paged.add()
    for count in _LONG_PROMPT:
        paged.step({prompt: count}, _limit(cache, encoding), f"{case}, a long prompt")


def _check_layer(
    plugin: AttentionPlugin, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding, case: str
) -> None:
    limit = _limit(cache, encoding)
    announced = plugin.bytes_per_block(cache, encoding) * _NUM_BLOCKS
    paged = PagedSequences(plugin, layer, cache, encoding, _NUM_BLOCKS)
    require(
        0 < paged.cache.nbytes <= announced,
        f"{case}: the cache has {paged.cache.nbytes} bytes, bytes_per_block announced {announced}",
    )
    paged.poison()
    size = cache.block_size
    at_edges = [paged.add() for _ in range(5)]
    lengths = [1, size - 1, size, size + 1, 2 * size]
    paged.step(dict(zip(at_edges, lengths, strict=True)), limit, f"{case}, prefill")
    for turn in range(2):
        paged.step(dict.fromkeys(at_edges, 1), limit, f"{case}, decode {turn}")
    late, chunked = paged.add(), paged.add()
    paged.step({at_edges[0]: 1, late: size + 3, at_edges[3]: 3, chunked: 7}, limit, f"{case}, mixed batch")
    paged.step({chunked: 9, late: 1}, limit, f"{case}, second chunk")
    paged.step({late: 1, chunked: 7, at_edges[2]: 4}, limit, f"{case}, third chunk")
    alone = paged.step({late: 1}, limit, f"{case}, decode alone", keep=False)
    together = paged.step({late: 1, at_edges[1]: 1}, limit, f"{case}, decode together", keep=False)
    difference = float((alone[late].double() - together[late].double()).abs().max())
    require(difference <= limit, f"{case}: a row differs by {difference:.3g} with company, over {limit:g}")
    paged.move(late)
    paged.step({late: 1, at_edges[0]: 1}, limit, f"{case}, after copy_blocks")
    sick = at_edges[4]
    paged.step({late: 1, sick: 1, chunked: 1}, limit, f"{case}, beside a NaN", sick=sick)
