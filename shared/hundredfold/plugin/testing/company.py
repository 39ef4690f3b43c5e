"""Whether attention keeps its promise: a token's bits alone and among others, however its prompt is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import AttentionBatch, AttentionPlugin, AttentionSpec, Encoding, KVCacheSpec
from hundredfold.plugin.testing.kernels import COMPANIES
from hundredfold.plugin.testing.report import require

_LONG = 1100
"""Tokens of a prompt whose keys a backend may share out over several threads when it is alone."""
_OTHERS = range(4, 81, 11)
"""Lengths of the seven sequences beside it."""


def check_company(
    plugin: AttentionPlugin, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding, case: str
) -> None:
    """Many short sequences beside each other, and a long one. Raises ``NonConformance``."""
    company = _Company(plugin, layer, cache, encoding)
    prompt = cache.block_size + 3
    drawn = company.draw([prompt + 1] * COMPANIES[-1])
    wanted = company.run(drawn, [[prompt] * len(drawn), [1] * len(drawn)])
    for rows in COMPANIES:
        for pieces in ((prompt, 1), (2, prompt - 2, 1)):
            found = company.run(drawn[:rows], [[count] * rows for count in pieces])
            require(
                all(map(torch.equal, found, wanted)),
                f"{case}: bits differ among {rows} sequences in steps of {pieces} tokens from those among "
                f"{len(drawn)}",
            )
    long, *others = company.draw([_LONG + 1, *_OTHERS])
    (alone,) = company.run([long], [[_LONG], [1]])
    beside = company.run([long, *others], [[_LONG, *(n - 1 for n in _OTHERS)], [1] * (1 + len(others))])[0]
    require(
        torch.equal(beside, alone),
        f"{case}: bits of a sequence of {_LONG + 1} tokens differ beside {len(others)} others",
    )
    (cut,) = company.run([long], [[700], [_LONG - 700], [1]])
    require(torch.equal(cut, alone), f"{case}: bits of a prompt of {_LONG} tokens differ when it is cut")


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Each [tokens, heads, head_dim]."""

    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True)
class _Company:
    plugin: AttentionPlugin
    layer: AttentionSpec
    cache: KVCacheSpec
    encoding: Encoding

    def draw(self, lengths: Sequence[int]) -> list[_Sequence]:
        """Sequences of so many tokens."""
        random = torch.Generator().manual_seed(sum(lengths))
        heads = (self.layer.num_heads, self.layer.num_kv_heads, self.layer.num_kv_heads)

        def part(length: int, count: int) -> Tensor:
            x = torch.randn((length, count, self.layer.head_dim), generator=random)
            return x.to(self.cache.device, self.cache.dtype)

        return [_Sequence(*(part(length, count) for count in heads)) for length in lengths]

    def run(self, sequences: Sequence[_Sequence], steps: Sequence[Sequence[int]]) -> list[Tensor]:
        """Outputs of every sequence; a step computes so many tokens of each."""
        size, device = self.cache.block_size, self.cache.device
        blocks = max(-(-len(sequence.q) // size) for sequence in sequences)
        tables = torch.arange(len(sequences) * blocks, dtype=torch.int32, device=device).view(-1, blocks)
        own = self.plugin.allocate(self.cache, self.encoding, tables.numel())
        done = [0] * len(sequences)
        found: list[list[Tensor]] = [[] for _ in sequences]
        for counts in steps:
            spans = [slice(first, first + count) for first, count in zip(done, counts, strict=True)]
            done = [span.stop for span in spans]
            # blocks of a row lie one after the other, so a token's slot is as far behind the row's first
            slots = [row * blocks * size + at for row, span in enumerate(spans) for at in _each(span)]
            positions = [at for span in spans for at in _each(span)]
            batch = AttentionBatch(
                query_lens=list(counts),
                seq_lens=done,
                block_tables=tables,
                slot_mapping=torch.tensor(slots, device=device),
                positions=torch.tensor(positions, device=device),
            )
            q, k, v = (
                torch.cat([getattr(s, part)[span] for s, span in zip(sequences, spans, strict=True)])
                for part in "qkv"
            )
            out = self.plugin.plan(batch, self.cache, self.encoding)(self.layer, own, q, k, v)
            for parts, part in zip(found, torch.split(out, list(counts)), strict=True):
                parts.append(part)
        return [torch.cat(parts) for parts in found]


def _each(span: slice) -> range:
    return range(span.start, span.stop)
