"""A list of calls that a team goes through: the same bits as alone, with threads that are often late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import (
    Activation,
    Activations,
    AttentionBatch,
    AttentionSpec,
    BlockHadamard,
    CanonicalWeight,
    ChannelInt8Weight,
    ElementwiseSpec,
    Encoding,
    GroupedIntWeight,
    KVCacheSpec,
    LinearSpec,
    NativeCall,
    RotaryStyle,
    Rotation,
    Zero,
)
from hundredfold_cpu.attention import CpuAttention
from hundredfold_cpu.elementwise import CpuElementwise
from hundredfold_cpu.kernels import CpuKernels, CpuLinear
from hundredfold_cpu.program import KeptProgram
from hundredfold_cpu.tiles import Scratch

CPU = torch.device("cpu")
TURNS = 40
THREADS = 5
"""More than most machines give a test: some are off their core when the others have done."""
ROWS = [1, 3, 8, 9, 47, 300]
"""One product takes few rows, another many; the last ones are more than a part of any call."""


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def linear(features: int, columns: int, bits: int) -> CpuLinear:
    random = torch.Generator().manual_seed(features)
    codes = torch.randint(0, 1 << bits, (features, columns), dtype=torch.uint8, generator=random)
    scales, zeros = torch.rand((2, features, columns // 32), generator=random).half()
    return prepare(GroupedIntWeight(codes, scales, zeros, bits, 32, Zero.OFFSET), torch.float32)


def channel(features: int, columns: int, dtype: torch.dtype) -> CpuLinear:
    random = torch.Generator().manual_seed(features)
    codes = torch.randint(-128, 128, (features, columns), dtype=torch.int8, generator=random)
    scales = torch.rand(features, generator=random) * 0.01
    return prepare(ChannelInt8Weight(codes, scales, BlockHadamard(columns & -columns)), dtype)


def prepare(weight: CanonicalWeight, dtype: torch.dtype) -> CpuLinear:
    return CpuKernels().prepare(LinearSpec("layer", weight, CPU, dtype, Activations.INT8), None)


def kept(call: NativeCall | None) -> NativeCall:
    assert call is not None
    return call


def check(program: KeptProgram, rows: int, out: Tensor, expected: Tensor) -> None:
    for _ in range(TURNS):
        out.zero_()
        program(rows)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("rows", ROWS)
def test_products_one_after_the_other(rows: int) -> None:
    """Each reads what the one before has put in place; the inputs' memory grows on the way."""
    layers = [linear(1000, 256, 4), linear(2056, 992, 8), linear(256, 2048, 4)]
    inputs = torch.randn((TURNS, rows, 256), generator=torch.Generator().manual_seed(1))
    x, a, b, y = (torch.empty(rows, width) for width in (256, 1000, 2056, 256))
    ends = [(x, a), (a[:, :992], b), (b[:, :2048], y)]
    program = KeptProgram([kept(layer.capture(*pair)) for layer, pair in zip(layers, ends, strict=True)])
    for own in inputs:
        x.copy_(own)
        program(rows)
        expected = own
        for layer in layers:
            expected = layer(expected[:, : layer.columns])
        assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", ROWS)
def test_a_layer(rows: int, dtype: torch.dtype) -> None:
    """Norm, rotation in place, products with inputs that become int8, gate, and what is added."""
    random = torch.Generator().manual_seed(rows)
    operations = CpuElementwise().bind(ElementwiseSpec(CPU, dtype, frozenset({Activation.SILU})))
    up, down = channel(2 * 320, 96, dtype), channel(96, 320, dtype)
    weight, angles = torch.rand(96, generator=random), torch.rand((rows, 16, 2), generator=random)
    rotation = Rotation(32, RotaryStyle.HALVES, angles)
    inputs = torch.randn((TURNS, 2, rows, 96), generator=random).to(dtype)
    residual, x, normed = (torch.empty((rows, 96), dtype=dtype) for _ in range(3))
    both, opened = torch.empty((rows, 2 * 320), dtype=dtype), torch.empty((rows, 320), dtype=dtype)
    heads = normed.view(rows, 3, 32)
    program = KeptProgram(
        [
            operations.capture_add_rms_norm(residual, x, weight, 1e-5, normed),
            operations.capture_rotate(heads, rotation),
            kept(up.capture(normed, both)),
            operations.capture_gated(both, Activation.SILU, opened),
            kept(down.capture(opened, x)),
            operations.capture_add(residual, x),
        ]
    )
    for own, added in inputs:
        residual.copy_(own), x.copy_(added)
        program(rows)
        expected = own.clone()
        wanted = operations.add_rms_norm(expected, added, weight, 1e-5)
        operations.rotate(wanted.view(rows, 3, 32), rotation)
        expected.add_(down(operations.gated(up(wanted), Activation.SILU)))
        assert torch.equal(residual, expected)


@pytest.mark.parametrize("features", [46_016, 46_033], ids=["whole lines", "a tail"])
def test_an_output_that_goes_past_the_caches(features: int) -> None:
    random = torch.Generator().manual_seed(features)
    x = torch.randn((96, 64), generator=random).bfloat16()
    head, logits = channel(features, 64, torch.bfloat16), torch.empty((96, 46_048), dtype=torch.bfloat16)
    program = KeptProgram([kept(head.capture(x, logits[:, :features]))])
    for _ in range(TURNS):
        logits.fill_(7)
        program(len(x))
        assert torch.equal(logits[:, :features], head(x))
        assert bool((logits[:, features:] == 7).all())


@pytest.mark.parametrize("encoding", [Encoding.FP32, Encoding.INT8])
@pytest.mark.parametrize(("queries", "length"), [(1, 200), (1, 1300), (7, 1300)])
def test_attention_by_a_team(encoding: Encoding, queries: int, length: int) -> None:
    """Short, in several runs that are joined, and with tokens that are written before."""
    layer, backend = AttentionSpec(6, 2, 64, 0.125), CpuAttention()
    spec = KVCacheSpec(1, 2, 64, 64, CPU, torch.float32)
    random = torch.Generator().manual_seed(length)

    def batch(first: int, count: int) -> AttentionBatch:
        positions = torch.arange(first, first + count)
        table = torch.arange(-(-length // 64), dtype=torch.int32)[None]
        return AttentionBatch([count], [first + count], table, positions, positions)

    def draw(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        joined = torch.randn((tokens, 10, 64), generator=random)
        return joined[:, :6], joined[:, 6:8], joined[:, 8:]

    cache, step = backend.allocate(spec, encoding, -(-length // 64)), batch(length - queries, queries)
    backend.plan(batch(0, length - queries), spec, encoding)(layer, cache, *draw(length - queries))
    new, out = draw(queries), torch.empty(queries, 6 * 64)
    expected = backend.plan(step, spec, encoding)(layer, cache, *new)
    captured = backend.capturing(spec, encoding)
    program = KeptProgram([captured.capture(layer, cache, *new, out)])
    captured.prepare(step)
    check(program, queries, out, expected)


@pytest.mark.parametrize("encoding", [Encoding.FP32, Encoding.INT8])
def test_many_sequences(encoding: Encoding) -> None:
    """Tokens that are drawn and pieces of prompts, of many lengths: parts of several items."""
    layer, backend = AttentionSpec(6, 2, 64, 0.125), CpuAttention()
    spec = KVCacheSpec(1, 2, 64, 64, CPU, torch.float32)
    random = torch.Generator().manual_seed(7)
    query_lens = [1] * 40 + [5, 1, 30]
    seq_lens = [query + 7 * i for i, query in enumerate(query_lens)]
    table = torch.arange(len(query_lens) * 6, dtype=torch.int32).view(len(query_lens), 6)
    positions = [torch.arange(end - query, end) for query, end in zip(query_lens, seq_lens, strict=True)]
    slots = torch.cat([row[own // 64] * 64 + own % 64 for row, own in zip(table, positions, strict=True)])
    step = AttentionBatch(query_lens, seq_lens, table, slots, torch.cat(positions))
    cache = backend.allocate(spec, encoding, table.numel())
    before = torch.randn((table.numel() * 64, 10, 64), generator=random)
    filled = AttentionBatch(
        [384] * len(table),
        [384] * len(table),
        table,
        torch.arange(len(before)),
        torch.arange(384).repeat(len(table)),
    )
    backend.plan(filled, spec, encoding)(layer, cache, before[:, :6], before[:, 6:8], before[:, 8:])
    joined = torch.randn((sum(query_lens), 10, 64), generator=random)
    new, out = (joined[:, :6], joined[:, 6:8], joined[:, 8:]), torch.empty(len(joined), 6 * 64)
    expected = backend.plan(step, spec, encoding)(layer, cache, *new)
    captured = backend.capturing(spec, encoding)
    program = KeptProgram([captured.capture(layer, cache, *new, out)])
    captured.prepare(step)
    check(program, len(joined), out, expected)


def test_a_step_prepared_for_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written behind the memory that was made for them."""
    taken: list[tuple[Tensor, int]] = []

    def take(_: Scratch, size: int) -> Tensor:
        taken.append((torch.full((THREADS * size,), 7.0), size))
        return taken[-1][0]

    monkeypatch.setattr(Scratch, "take", take)
    layer, backend = AttentionSpec(6, 2, 64, 0.125), CpuAttention()
    spec = KVCacheSpec(1, 2, 64, 64, CPU, torch.float32)
    rows = torch.arange(40)
    step = AttentionBatch([1] * 40, [60] * 40, rows.int()[:, None], rows * 64 + 59, torch.full((40,), 59))
    joined, out = torch.randn((40, 10, 64), generator=torch.Generator().manual_seed(3)), torch.empty(40, 384)
    captured = backend.capturing(spec, Encoding.FP32)
    cache = backend.allocate(spec, Encoding.FP32, 40)
    program = KeptProgram([captured.capture(layer, cache, joined[:, :6], joined[:, 6:8], joined[:, 8:], out)])
    torch.set_num_threads(1)
    captured.prepare(step)
    torch.set_num_threads(THREADS)
    for _ in range(TURNS):
        program(40)
    assert all(bool((room[size:] == 7).all()) for room, size in taken)


@pytest.mark.parametrize("threads", [1, THREADS])
def test_no_rows(threads: int) -> None:
    torch.set_num_threads(threads)
    x, out = torch.empty((4, 96)), torch.full((4, 64), 7.0)
    for layer in (channel(64, 96, torch.float32), linear(64, 96, 4)):
        KeptProgram([kept(layer.capture(x, out))])(0)
        assert layer(x[:0]).shape == (0, 64)
    assert bool((out == 7).all())
