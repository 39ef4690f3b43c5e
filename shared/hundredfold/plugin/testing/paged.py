"""Sequences over a paged cache: their true history aside, and NaN wherever nothing was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hundredfold.plugin import AttentionBatch, AttentionPlugin, AttentionSpec, Encoding, KVCacheSpec
from hundredfold.plugin.kv_codes import decode, encode
from hundredfold.plugin.testing.reference import reference_attention
from hundredfold.plugin.testing.report import require


@dataclass(slots=True)
class _Sequence:
    keys: Tensor
    values: Tensor
    blocks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Row:
    sequence: int
    q: Tensor
    k: Tensor
    v: Tensor


class PagedSequences:
    """Runs steps through a backend and compares every row with the reference over the whole history."""

    def __init__(
        self,
        plugin: AttentionPlugin,
        layer: AttentionSpec,
        cache: KVCacheSpec,
        encoding: Encoding,
        num_blocks: int,
    ) -> None:
        self._plugin, self._layer, self._spec, self._encoding = plugin, layer, cache, encoding
        self.cache = plugin.allocate(cache, encoding, num_blocks)
        self._random = torch.Generator().manual_seed(layer.head_dim)
        # The last block stays free and poisoned: it pads the tables.
        self._padding = num_blocks - 1
        self._free = torch.randperm(num_blocks - 1, generator=self._random).tolist()
        self._sequences: list[_Sequence] = []

    def poison(self) -> None:
        """Write NaN to every slot of the cache, as a short sequence in each block."""
        size = self._spec.block_size
        blocks = range(self._padding + 1)
        nan = self._place(torch.full((size, self._layer.num_kv_heads, self._layer.head_dim), float("nan")))
        rows = [_Row(-1, self._draw(size, self._layer.num_heads), nan, nan) for _ in blocks]
        self._run(rows, [size] * len(rows), [[block] for block in blocks])

    def add(self) -> int:
        """A new sequence without tokens."""
        empty = self._draw(0, self._layer.num_kv_heads)
        self._sequences.append(_Sequence(empty, empty))
        return len(self._sequences) - 1

    def move(self, sequence: int) -> None:
        """Copy a sequence's blocks elsewhere, poison the old ones' owner away, go on with the copies."""
        state = self._sequences[sequence]
        fresh = [self._free.pop() for _ in state.blocks]
        device = self._spec.device
        self.cache.copy_blocks(
            torch.tensor(state.blocks, dtype=torch.int64, device=device),
            torch.tensor(fresh, dtype=torch.int64, device=device),
        )
        state.blocks = fresh

    def step(
        self,
        tokens: Mapping[int, int],
        limit: float,
        case: str,
        *,
        keep: bool = True,
        sick: int | None = None,
    ) -> dict[int, Tensor]:
        """Advance each sequence by a number of tokens and check every row; returns the rows' outputs.

        Without ``keep`` the histories stay as they were, so the same step can be taken again. ``sick`` gets
        NaN as queries, keys and values; its own output is not compared.
        """
        saved = [(s.keys, s.values) for s in self._sequences]
        state = self._random.get_state()
        rows = [self._grow(sequence, count, sick == sequence) for sequence, count in tokens.items()]
        lengths = [len(self._sequences[row.sequence].keys) for row in rows]
        tables = [self._sequences[row.sequence].blocks for row in rows]
        out = self._run(rows, lengths, tables)
        wanted_shape = (sum(tokens.values()), self._layer.num_heads * self._layer.head_dim)
        require(out.shape == wanted_shape, f"{case}: shape is {tuple(out.shape)}, wanted is {wanted_shape}")
        require(out.dtype == self._spec.dtype, f"{case}: type is {out.dtype}, wanted is {self._spec.dtype}")
        results = dict(zip(tokens, torch.split(out, list(tokens.values())), strict=True))
        for row in rows:
            if row.sequence != sick:
                self._compare(row, results[row.sequence], limit, case)
        if not keep:
            for sequence, (keys, values) in zip(self._sequences, saved, strict=True):
                sequence.keys, sequence.values = keys, values
            self._random.set_state(state)
        return results

    def _compare(self, row: _Row, got: Tensor, limit: float, case: str) -> None:
        sequence = self._sequences[row.sequence]
        wanted = reference_attention(
            self._layer, row.q, self._as_stored(sequence.keys), self._as_stored(sequence.values)
        )
        where = f"{case}, row of {len(row.q)} tokens at length {len(sequence.keys)}"
        require(bool(torch.isfinite(got).all()), f"{where}: not finite, so an unused slot was read")
        error = float((got.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))
        require(error <= limit, f"{where}: relative error {error:.3g} is over {limit:g}")

    def _as_stored(self, x: Tensor) -> Tensor:
        """The numbers that a cache of this encoding holds of ``x``, where the encoding says which."""
        if self._encoding is Encoding.BF16:
            return x.to(torch.bfloat16)
        if self._encoding is Encoding.FP32:
            return x
        return decode(self._encoding, *encode(self._encoding, x), x.shape[-1])

    def _grow(self, sequence: int, count: int, sick: bool) -> _Row:
        state = self._sequences[sequence]
        heads, kv_heads = self._layer.num_heads, self._layer.num_kv_heads
        row = _Row(
            sequence, self._draw(count, heads), self._draw(count, kv_heads), self._draw(count, kv_heads)
        )
        if sick:
            for part in (row.q, row.k, row.v):
                part.fill_(float("nan"))
        state.keys = torch.cat([state.keys, row.k])
        state.values = torch.cat([state.values, row.v])
        while len(state.blocks) * self._spec.block_size < len(state.keys):
            state.blocks.append(self._free.pop())
        return row

    def _run(self, rows: list[_Row], lengths: list[int], tables: list[list[int]]) -> Tensor:
        size, device = self._spec.block_size, self._spec.device
        widest = max(map(len, tables))
        padded = [table + [self._padding] * (widest - len(table)) for table in tables]
        positions: list[int] = []
        slots: list[int] = []
        for row, length, table in zip(rows, lengths, tables, strict=True):
            own = range(length - len(row.q), length)
            positions.extend(own)
            slots.extend(table[p // size] * size + p % size for p in own)
        batch = AttentionBatch(
            query_lens=[len(row.q) for row in rows],
            seq_lens=lengths,
            block_tables=torch.tensor(padded, dtype=torch.int32, device=device),
            slot_mapping=torch.tensor(slots, dtype=torch.int64, device=device),
            positions=torch.tensor(positions, dtype=torch.int64, device=device),
            prompt_lens=lengths,
        )
        planned = self._plugin.plan(batch, self._spec, self._encoding)
        q, k, v = (torch.cat([getattr(row, part) for row in rows]) for part in "qkv")
        return planned(self._layer, self.cache, q, k, v)

    def _draw(self, tokens: int, heads: int) -> Tensor:
        shape = (tokens, heads, self._layer.head_dim)
        return self._place(torch.randn(shape, generator=self._random))

    def _place(self, x: Tensor) -> Tensor:
        return x.to(self._spec.device, self._spec.dtype)
