"""Products of bfloat16: the bits that are defined, from every instruction set, in any company, by a team."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import DenseWeight, LinearSpec, NativeCall
from hundredfold_cpu.kernels import CpuKernels, CpuLinear
from hundredfold_cpu.library import Variant, best, variants
from hundredfold_cpu.program import KeptProgram

CPU = torch.device("cpu")
RUNS = variants()
BLOCK = 32
SHAPES = [(960, 576), (49, 1536), (1, 64), (16, 1), (17, 2), (33, 47), (31, 321), (100, 703)]
"""Odd tails of panels and blocks; one column."""
ROWS = (1, 2, 3, 5, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 143)
TINIEST = torch.finfo(torch.float32).tiny


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=RUNS, ids=lambda variant: variant.isa)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param  # type: ignore[no-any-return]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def prepare(variant: Variant, weight: Tensor, bias: Tensor | None = None) -> CpuLinear:
    spec = LinearSpec("layer", DenseWeight(weight), CPU, torch.bfloat16)
    return CpuKernels(variant).prepare(spec, bias)


def defined(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """The chains of native/dense.h; float64 makes each multiply-add a fused one, all but surely."""

    def normal(numbers: Tensor) -> Tensor:
        return torch.where(numbers.abs() < TINIEST, 0.0, numbers)

    x, matrix = normal(x.float()).double(), normal(matrix.float()).double()
    sums = torch.zeros(len(x), len(matrix))
    for first in range(0, x.shape[1], BLOCK):
        chains = [torch.zeros_like(sums), torch.zeros_like(sums)]
        for k in range(first, min(first + BLOCK, x.shape[1])):
            product = x[:, k, None] * matrix[:, k]
            chains[k % 2] = normal((chains[k % 2].double() + product).float())
        sums = normal(sums + normal(chains[0] + chains[1]))
    return (sums if bias is None else sums + bias.float()).bfloat16()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_bit_is_the_defined_one(variant: Variant, shape: tuple[int, int], has_bias: bool) -> None:
    n, k = shape
    matrix, bias, x = draw(n, k), draw(n, seed=1) if has_bias else None, draw(35, k, seed=2)
    assert torch.equal(prepare(variant, matrix, bias)(x), defined(x, matrix, bias))


@pytest.mark.parametrize("shape", [(960, 576), (100, 703)], ids=str)
def test_company_instruction_set_and_threads_change_no_bit(shape: tuple[int, int]) -> None:
    n, k = shape
    matrix, bias, x = draw(n, k), draw(n, seed=1), draw(200, k, seed=2)
    whole = prepare(RUNS[0], matrix, bias)(x)
    for other in RUNS:
        linear = prepare(other, matrix, bias)
        for start, rows in itertools.product((0, 57), ROWS):
            part = slice(start, start + rows)
            assert torch.equal(linear(x[part]), whole[part]), (other.isa, start, rows)
        for threads, rows in itertools.product((1, 3), (1, 3, 200)):
            torch.set_num_threads(threads)
            assert torch.equal(linear(x[:rows]), whole[:rows]), (other.isa, threads, rows)


def test_more_rows_than_a_cache_keeps() -> None:
    matrix, x = draw(40, 4100), draw(300, 4100, seed=1)
    linear = prepare(best(), matrix)
    whole = linear(x)
    assert torch.equal(whole, torch.cat([linear(row[None]) for row in x]))


def test_what_lies_around_the_numbers_is_never_used(variant: Variant) -> None:
    """NaN beside, before and behind the input's rows, the weight's and the bias."""
    n, k = 21, 45

    def poisoned(inner: Tensor) -> Tensor:
        outer = torch.full([size + 64 for size in inner.shape], float("nan"), dtype=inner.dtype)
        view = outer[tuple(slice(8, 8 + size) for size in inner.shape)]
        view.copy_(inner)
        return view

    matrix, bias = draw(n, k), draw(n, seed=1)
    linear = prepare(variant, poisoned(matrix), poisoned(bias))
    for rows in (1, 7, 37):
        x = draw(rows, k, seed=2)
        assert torch.equal(linear(poisoned(x)), defined(x, matrix, bias)), rows


@pytest.mark.parametrize("factor", [1.0, 2.0**-60, 2.0**-64])
def test_numbers_too_small_for_a_normal_float_are_zero(variant: Variant, factor: float) -> None:
    matrix, x = draw(32, 96) * factor, draw(20, 96, seed=1) * 2.0**-63
    matrix[:, 3::7] = TINIEST / 4
    y = prepare(variant, matrix)(x)
    assert torch.equal(y, defined(x, matrix, None))
    assert bool((y == 0).any()) is (factor < 1)


def test_a_step_computes_as_afterwards(variant: Variant) -> None:
    """Floats of others keep their small numbers: the processor's mode is as it was."""
    before = torch.full((40,), TINIEST) / 8
    prepare(variant, draw(64, 96))(draw(20, 96))
    assert torch.equal(torch.full((40,), TINIEST) / 8, before)
    assert bool(before.any())


@pytest.mark.parametrize("rows", [1, 3, 8, 9, 47, 300])
def test_products_by_a_team(rows: int) -> None:
    """Each reads what the one before has put in place; the inputs' memory grows on the way."""
    torch.set_num_threads(5)
    layers = [prepare(best(), draw(n, k, seed=n) / 16) for n, k in ((1000, 256), (2056, 992), (250, 2048))]
    x, a, b, y = (torch.empty(rows, width, dtype=torch.bfloat16) for width in (256, 1000, 2056, 250))
    ends = [(x, a), (a[:, :992], b), (b[:, :2048], y)]
    program = KeptProgram([kept(layer.capture(*pair)) for layer, pair in zip(layers, ends, strict=True)])
    for turn in range(40):
        x.copy_(draw(rows, 256, seed=turn))
        program(rows)
        expected = x
        for layer in layers:
            expected = layer(expected[:, : layer.columns])
        assert torch.equal(y, expected)


def kept(call: NativeCall | None) -> NativeCall:
    assert call is not None
    return call


def test_memory_is_two_bytes_a_weight() -> None:
    linear = prepare(best(), draw(64, 512))
    assert linear.nbytes == 2 * 64 * 512
