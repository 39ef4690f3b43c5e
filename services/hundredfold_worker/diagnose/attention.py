"""Where the attention of a prompt goes, layer by layer: on the first token, on the nearest, or everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hundredfold.findings import Finding, Severity, fine
from hundredfold.plugin import AttentionBatch, AttentionSpec
from hundredfold_worker.model.decoder import Decoder

MOST_TOKENS = 256
"""Of a prompt: all pairs of them are looked at."""
_FIRST_ROW = 8
"""Tokens before this have too few to choose from."""
_NEAR = 4
UNIFORM, COLLAPSED = 0.995, 0.002
"""Normed entropy from which on a head looks everywhere alike, and below which at one token alone."""


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """One layer, means over tokens."""

    entropy: tuple[float, ...]
    """By head: 0 where one token gets all, 1 where all get the same."""
    sink: float
    """Share of the first token, mean of heads."""
    near: float
    """Share of the last four tokens, the token itself included."""
    finite: bool


@dataclass(slots=True)
class Listener:
    """An attention backend with an ear at it."""

    attention: Any
    patterns: list[LayerPattern] = field(default_factory=list)

    def plan(self, batch: AttentionBatch, *rest: Any) -> Any:
        """As the backend's, and every call is looked at first."""
        planned = self.attention.plan(batch, *rest)

        def attend(spec: AttentionSpec, cache: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.patterns.append(pattern(spec, q, k, v))
            attended: Tensor = planned(spec, cache, q, k, v)
            return attended

        return attend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.attention, name)


def patterns(decoder: Decoder, ids: Tensor) -> tuple[list[LayerPattern], Tensor]:
    """Each layer's pattern, and logits float32[n, vocabulary], of one whole sequence int64[n]."""
    ids = ids[:MOST_TOKENS]
    count = len(ids)
    device = decoder.final_norm.weight.device
    planner = decoder.cache_planner
    blocks = -(-count // planner.spec.block_size)
    positions = torch.arange(count, device=device)
    batch = AttentionBatch(
        query_lens=[count],
        seq_lens=[count],
        block_tables=torch.arange(blocks, dtype=torch.int32, device=device)[None, :],
        slot_mapping=positions,
        positions=positions,
    )
    listener: Any = Listener(decoder.attention)
    with torch.inference_mode():
        listening = replace(decoder, attention=listener)
        logits = listening.forward(ids.to(device), batch, planner.allocate(blocks), positions)
    return listener.patterns, logits.float()


def pattern(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> LayerPattern:
    """Softmax of all pairs in float32; ``q`` [T, heads, d], ``k`` and ``v`` [T, kv heads, d]."""
    finite = all(bool(torch.isfinite(part).all()) for part in (q, k, v))
    if not finite:
        return LayerPattern((), math.nan, math.nan, False)
    count = len(q)
    keys = k.float().repeat_interleave(spec.num_heads // spec.num_kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    row, column = torch.arange(count)[:, None], torch.arange(count)[None, :]
    hidden = column > row
    if spec.sliding_window is not None:
        hidden = hidden | (row - column >= spec.sliding_window)
    weights = scores.masked_fill(hidden.to(scores.device), -math.inf).softmax(-1)
    seen = (~hidden).sum(1).clamp(min=2).to(scores.device).float().log()
    first = min(_FIRST_ROW, count - 1)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1) / seen
    near = (row - column < _NEAR) & ~hidden
    return LayerPattern(
        entropy=tuple(entropy[:, first:].mean(1).tolist()),
        sink=float(weights[:, first:, 0].mean()),
        near=float((weights * near.to(weights.device)).sum(-1)[:, first:].mean()),
        finite=True,
    )


def check_attention(found: list[LayerPattern]) -> Iterator[Finding]:
    """What is odd about them."""
    broken = [index for index, layer in enumerate(found) if not layer.finite]
    if broken:
        yield Finding(
            "attention-non-finite",
            Severity.ERROR,
            f"queries, keys or values of layer {broken[0]} are not finite",
            "weights or scales before that layer hold NaN or infinities, or overflow in fp16",
            "compare with the dense model (--against), or use --dtype bf16 or fp32",
        )
    whole = [layer for layer in found if layer.finite]
    uniform = [i for i, layer in enumerate(found) if layer.finite and min(layer.entropy) > UNIFORM]
    if uniform:
        yield Finding(
            "attention-uniform",
            Severity.ERROR,
            f"every head of layer {_list(uniform)} looks at all tokens alike",
            "queries or keys are zero or nearly so: a projection was not loaded, or its scales were lost",
            "compare with the dense model (--against) layer by layer",
        )
    collapsed = [i for i, layer in enumerate(found) if layer.finite and max(layer.entropy) < COLLAPSED]
    if collapsed:
        yield Finding(
            "attention-collapsed",
            Severity.ERROR,
            f"every head of layer {_list(collapsed)} looks at a single token",
            "queries or keys are far too large: wrong scales, or a norm on them that was left out",
            "compare with the dense model (--against) layer by layer",
        )
    if whole and not (broken or uniform or collapsed):
        sink = sum(layer.sink for layer in whole) / len(whole)
        near = sum(layer.near for layer in whole) / len(whole)
        yield fine(
            "attention", f"{sink:.0%} of it goes to the first token, {near:.0%} to the nearest {_NEAR}"
        )


def _list(layers: list[int]) -> str:
    return ", ".join(map(str, layers[:6])) + (" …" if len(layers) > 6 else "")
