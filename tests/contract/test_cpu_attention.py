"""The native attention: equal to the reference on odd shapes, and a query's bits its sequence's alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import AttentionBatch, AttentionSpec, Encoding, KVCacheSpec, LayerCache
from hundredfold.plugin.kv_codes import decode, encode
from hundredfold.plugin.testing import check_attention, reference_attention
from hundredfold_cpu.attention import CpuAttention
from hundredfold_cpu.library import Variant, variants
from hundredfold_cpu.paged_cache import STORED
from support.poison import poison

CPU = torch.device("cpu")
NUM_BLOCKS = 64


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_the_suite() -> None:
    assert not check_attention(CpuAttention()).refused


class Paged:
    """One sequence's keys and values, and a cache that was poisoned before them."""

    def __init__(
        self,
        layer: AttentionSpec,
        length: int,
        *,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        encoding: Encoding = Encoding.FP32,
        variant: Variant | None = None,
    ) -> None:
        self.backend = CpuAttention(variant)
        self.layer, self.encoding, self.length = layer, encoding, length
        self.spec = KVCacheSpec(1, layer.num_kv_heads, layer.head_dim, block_size, CPU, dtype)
        self.random = torch.Generator().manual_seed(length)
        self.q, self.k, self.v = self.draw(length)
        self.table = torch.randperm(NUM_BLOCKS - 1, generator=self.random).to(torch.int32)
        self.cache = self.fresh()

    def draw(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Slices of one buffer, as the decoder passes them."""
        heads, kv_heads = self.layer.num_heads, self.layer.num_kv_heads
        shape = (tokens, heads + 2 * kv_heads, self.layer.head_dim)
        joined = torch.randn(shape, generator=self.random).to(self.spec.dtype)
        return joined[:, :heads], joined[:, heads : heads + kv_heads], joined[:, heads + kv_heads :]

    def fresh(self) -> LayerCache:
        cache = self.backend.allocate(self.spec, self.encoding, NUM_BLOCKS)
        poison(cache)
        return cache

    def run(self, chunks: list[int], beside: int = 0, neighbours: int = 1) -> Tensor:
        """All tokens' outputs, ``chunks`` at a time, with ``beside`` tokens of other sequences each time."""
        self.cache = self.fresh()
        size, done, found = self.spec.block_size, 0, []
        for count in chunks:
            positions = torch.arange(done, done + count)
            batch = AttentionBatch(
                query_lens=[count],
                seq_lens=[done + count],
                block_tables=self.table[None],
                slot_mapping=self.table.long()[positions // size] * size + positions % size,
                positions=positions,
            )
            parts = [part[done : done + count] for part in (self.q, self.k, self.v)]
            if beside:
                batch, parts = self.with_company(batch, parts, beside, neighbours)
            planned = self.backend.plan(batch, self.spec, self.encoding)
            out = planned(self.layer, self.cache, *parts)
            found.append(out[len(out) - count :])
            done += count
        return torch.cat(found)

    def with_company(
        self, batch: AttentionBatch, parts: list[Tensor], tokens: int, neighbours: int
    ) -> tuple[AttentionBatch, list[Tensor]]:
        """Other sequences go first; they lie at the end of the table, turned around."""
        size = self.spec.block_size
        turned, blocks = self.table.flip(0), -(-tokens // size)
        tables = torch.stack([turned.roll(-i * blocks) for i in range(neighbours)])
        positions = torch.arange(tokens)
        slots = tables.long()[:, positions // size] * size + positions % size
        joined = AttentionBatch(
            query_lens=[*[tokens] * neighbours, *batch.query_lens],
            seq_lens=[*[tokens] * neighbours, *batch.seq_lens],
            block_tables=torch.cat((tables, batch.block_tables)),
            slot_mapping=torch.cat((slots.flatten(), batch.slot_mapping)),
            positions=torch.cat((positions.repeat(neighbours), batch.positions)),
        )
        return joined, [torch.cat(pair) for pair in zip(self.draw(tokens * neighbours), parts, strict=True)]


PLAIN = AttentionSpec(num_heads=6, num_kv_heads=2, head_dim=64, scale=0.125)
SINKS = torch.tensor([0.0, 1.0, -2.0, 3.0, 0.5, 8.0])
LAYERS = {
    "plain": PLAIN,
    "a head each": replace(PLAIN, num_kv_heads=6),
    "one key head of seven": replace(PLAIN, num_heads=7, num_kv_heads=1),
    "window 1": replace(PLAIN, sliding_window=1),
    "window 16": replace(PLAIN, sliding_window=16),
    "window 37": replace(PLAIN, sliding_window=37),
    "softcap": replace(PLAIN, softcap=2.0),
    "sinks": replace(PLAIN, sinks=SINKS),
    "everything": replace(PLAIN, sliding_window=21, softcap=1.5, sinks=SINKS),
}
CHUNKS = ([200], [1] * 200, [7, 9, 1, 1, 150, 32], [199, 1], [64, 64, 72], [16, 1, 100, 83])


@pytest.mark.parametrize("head_dim", [1, 8, 20, 64, 90, 256])
@pytest.mark.parametrize("block_size", [16, 48, 256])
@pytest.mark.parametrize("encoding", [Encoding.FP32, Encoding.INT4])
def test_any_head_size_and_block_size(head_dim: int, block_size: int, encoding: Encoding) -> None:
    layer = replace(LAYERS["everything"], head_dim=head_dim)
    paged = Paged(layer, 100, block_size=block_size, encoding=encoding)
    keys, values = paged.k, paged.v
    if encoding is not Encoding.FP32:
        keys, values = (decode(encoding, *encode(encoding, x), head_dim) for x in (keys, values))
    wanted = reference_attention(layer, paged.q, keys, values)
    limit = 2e-6 if encoding is Encoding.FP32 else 3e-4  # queries and weights are int16 there
    torch.testing.assert_close(paged.run([70, 1, 29]).double(), wanted, atol=limit, rtol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("encoding", list(STORED))
def test_bits_in_chunks_and_in_company(name: str, encoding: Encoding) -> None:
    """One prefill, pieces, token by token, beside short and long neighbours: the same bits."""
    paged = Paged(LAYERS[name], 200, encoding=encoding)
    whole = paged.run([200])
    assert torch.isfinite(whole).all()
    for chunks in CHUNKS:
        assert torch.equal(paged.run(chunks), whole), chunks
    for beside in (1, 2, 77, 500):
        assert torch.equal(paged.run([150, 1, 49], beside), whole), beside


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_bits_in_bfloat16(name: str) -> None:
    paged = Paged(LAYERS[name], 200, dtype=torch.bfloat16, encoding=Encoding.BF16)
    whole = paged.run([200])
    assert whole.dtype == torch.bfloat16
    assert all(torch.equal(paged.run(chunks, 33), whole) for chunks in CHUNKS)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("encoding", list(STORED))
def test_bits_on_every_instruction_set_and_any_number_of_threads(name: str, encoding: Encoding) -> None:
    layer = replace(LAYERS[name], head_dim=72)
    results = [Paged(layer, 60, variant=v, encoding=encoding).run([59, 1], 20) for v in variants()]
    torch.set_num_threads(3)
    results.append(Paged(layer, 60, encoding=encoding).run([59, 1], 20))
    assert all(torch.equal(result, results[0]) for result in results)


def test_bits_on_long_rows() -> None:
    """Over 65,536 scores a tile gets smaller; no bit follows."""
    layer = replace(PLAIN, num_heads=24, num_kv_heads=1, head_dim=16)
    paged = Paged(layer, 3500, block_size=64)
    paged.table = torch.arange(NUM_BLOCKS, dtype=torch.int32)
    whole = paged.run([3500])
    assert torch.equal(paged.run([3400, 1, 1, 98]), whole)


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("encoding", [Encoding.FP32, Encoding.INT8])
def test_bits_of_several_runs_that_threads_share(threads: int, encoding: Encoding) -> None:
    """Alone its runs are dealt out one by one, beside six others they may not be."""
    paged = Paged(PLAIN, 1300, block_size=64, encoding=encoding)
    whole = paged.run([1300])
    torch.set_num_threads(threads)
    for beside in (0, 40):
        for chunks in ([1300], [1298, 1, 1]):
            assert torch.equal(paged.run(chunks, beside, neighbours=6), whole), (beside, chunks)


def test_layers_of_two_kinds_share_a_step() -> None:
    """The second kind needs more room to work in, then the first runs again."""
    narrow, wide = replace(PLAIN, sliding_window=3), replace(PLAIN, num_heads=12)
    length, backend = 1000, CpuAttention()
    spec = KVCacheSpec(1, 2, 64, 16, CPU, torch.float32)
    positions = torch.arange(length)
    table = torch.arange(NUM_BLOCKS, dtype=torch.int32)[None]
    batch = AttentionBatch([length], [length], table, positions, positions)
    planned = backend.plan(batch, spec, Encoding.FP32)
    cache = backend.allocate(spec, Encoding.FP32, NUM_BLOCKS)
    q, k, v = (torch.randn(length, heads, 64) for heads in (12, 2, 2))
    first = planned(narrow, cache, q[:, :6], k, v)
    planned(wide, cache, q, k, v)
    assert torch.equal(planned(narrow, cache, q[:, :6], k, v), first)
    torch.testing.assert_close(
        first.double(), reference_attention(narrow, q[:, :6], k, v), atol=1e-5, rtol=1e-5
    )


def test_a_broken_token_stays_with_those_who_see_it() -> None:
    paged = Paged(PLAIN, 60)
    paged.v[41] = float("inf")
    paged.k[41] = float("nan")
    out = paged.run([60])
    assert torch.isfinite(out[:41]).all()
    assert out[41:].isnan().all()


def test_blocks_are_there_from_the_start_in_memory_that_may_be_huge_pages() -> None:
    """Shared memory may not be, on most systems; untouched memory could run out in the middle of work."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("no huge pages on this system")
    spec = KVCacheSpec(1, 2, 64, 16, CPU, torch.float32)
    blocks = CpuAttention().allocate(spec, Encoding.FP32, 4096).blocks
    permissions, facts = mapping_of(blocks.data_ptr())
    assert permissions.endswith("p")
    assert "hg" in facts["VmFlags"]
    assert int(facts["Rss"][0]) * 1024 >= blocks.nbytes


def mapping_of(address: int) -> tuple[str, dict[str, list[str]]]:
    """Permissions of the mapping of memory that holds an address, and what the system says of it."""
    permissions, facts, inside = "", {}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if name.endswith(":"):
            facts |= {name[:-1]: values} if inside else {}
        else:
            low, high = (int(bound, 16) for bound in name.split("-"))
            inside = low <= address < high
            permissions = values[0] if inside else permissions
    return permissions, facts


def test_what_is_refused_and_why() -> None:
    backend = CpuAttention()
    spec = KVCacheSpec(1, 2, 64, 16, CPU, torch.float32)
    assert backend.refuses(PLAIN, spec, Encoding.FP32) == []
    assert "512" in backend.refuses(replace(PLAIN, head_dim=513), spec, Encoding.FP32)[0]
    assert "multiple of 16" in backend.refuses(PLAIN, replace(spec, block_size=24), Encoding.FP32)[0]
    assert "float16" in backend.refuses(PLAIN, replace(spec, dtype=torch.float16), Encoding.BF16)[0]
    assert "cuda" in backend.refuses(PLAIN, replace(spec, device=torch.device("cuda")), Encoding.FP32)[0]
    assert "multiple of 4" in backend.refuses(replace(PLAIN, num_kv_heads=4), spec, Encoding.FP32)[0]
