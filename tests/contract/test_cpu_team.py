"""A list of calls that a team goes through: the same bits as alone, with threads that are often late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import (
    Activations,
    AttentionBatch,
    AttentionSpec,
    Encoding,
    GroupedIntWeight,
    KVCacheSpec,
    LinearSpec,
    NativeCall,
    Zero,
)
from hundredfold_cpu.attention import CpuAttention
from hundredfold_cpu.kernels import CpuKernels, CpuLinear
from hundredfold_cpu.program import FEW_ROWS, KeptProgram

CPU = torch.device("cpu")
TURNS = 40
THREADS = 5
"""More than most machines give a test: some are off their core when the others have done."""


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
    weight = GroupedIntWeight(codes, scales, zeros, bits, 32, Zero.OFFSET)
    return CpuKernels().prepare(LinearSpec("layer", weight, CPU, torch.float32, Activations.INT8), None)


def kept(call: NativeCall | None) -> NativeCall:
    assert call is not None
    return call


@pytest.mark.parametrize("rows", [1, 3, FEW_ROWS])
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
    for _ in range(TURNS):
        out.zero_()
        program(queries)
        assert torch.equal(out, expected)
