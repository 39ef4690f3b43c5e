"""Grouped integers times int8 inputs in C++: the definition's bits on every instruction set, in any batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import (
    Activations,
    BlockHadamard,
    DenseWeight,
    GroupedIntWeight,
    InputTransform,
    LinearSpec,
    Permute,
    Scale,
    Zero,
)
from hundredfold.plugin.dequantize import transform_input
from hundredfold.plugin.integer import LARGEST_GROUP, grouped_terms, multiply_grouped
from hundredfold_cpu.kernels import CpuKernels, CpuLinear
from hundredfold_cpu.library import Variant, best, variants
from hundredfold_torch.kernels import TorchKernels

CPU = torch.device("cpu")
RUNS = variants()
WHOLE = 4096
"""A group as long as any row here."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=RUNS, ids=lambda variant: variant.isa)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param  # type: ignore[no-any-return]


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def grouped(
    n: int,
    k: int,
    bits: int = 4,
    group: int = 32,
    zero: Zero = Zero.OFFSET,
    zeros: str = "random",
    signed: bool = False,
    dtype: torch.dtype = torch.float16,
    transform: InputTransform | None = None,
) -> GroupedIntWeight:
    """Random codes over the whole range, the lowest and highest among them, and scales of both signs."""
    codes = torch.randint(0, 1 << bits, (n, k), dtype=torch.uint8, generator=random())
    codes[0], codes[-1] = 0, (1 << bits) - 1
    if signed:
        codes = (codes.int() - (1 << (bits - 1))).to(torch.int8)
    groups = -(-k // group)
    scales = (torch.randn(n, groups, generator=random(1)) * 0.02).to(dtype)
    match zeros, zero:
        case "none", _:
            own = None
        case "same", _:
            own = torch.full((n, groups), float(1 << (bits - 1)), dtype=dtype)
        case _, Zero.POINT:
            own = torch.randint(0, 1 << bits, (n, groups), generator=random(2)).to(dtype)
        case _:
            own = torch.randn(n, groups, generator=random(2)).to(dtype)
    return GroupedIntWeight(codes, scales, own, bits, group, zero, transform)


WEIGHTS = {
    "Q4_0": {"zero": Zero.POINT, "zeros": "same"},
    "Q4_1": {},
    "Q8_0": {"bits": 8, "zero": Zero.POINT, "zeros": "none", "signed": True},
    "GPTQ": {"group": 128, "zero": Zero.POINT},
    "AWQ in bf16": {"group": 64, "zero": Zero.POINT, "dtype": torch.bfloat16},
    "float scales": {"dtype": torch.float32},
    "3 bits": {"bits": 3, "zero": Zero.POINT},
    "6 bits, signed": {"bits": 6, "zero": Zero.POINT, "signed": True},
    "8 bits, groups of 16": {"bits": 8, "group": 16},
    "8 bits, one group": {"bits": 8, "group": WHOLE, "zero": Zero.POINT},
    "signed with offsets": {"signed": True},
    "odd groups": {"group": 17},
    "one group": {"group": WHOLE},
}
"""Options of ``grouped`` for every arrangement that the kernel tells apart."""

SHAPES = [(49, 576), (33, 47), (1, 1), (16, 701)]
"""Odd tails of panels, groups and quads."""


def spec(weight: object, dtype: torch.dtype = torch.float32) -> LinearSpec:
    return LinearSpec("layer", weight, CPU, dtype, Activations.INT8)  # type: ignore[arg-type]


def prepare(
    variant: Variant, weight: object, bias: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> CpuLinear:
    assert CpuKernels(variant).refuses(spec(weight, dtype)) == []
    return CpuKernels(variant).prepare(spec(weight, dtype), bias)


def wanted(weight: GroupedIntWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return multiply_grouped(transform_input(x, weight.transform), grouped_terms(weight), bias)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bits_of_the_definition(variant: Variant, kind: str, shape: tuple[int, int]) -> None:
    weight = grouped(*shape, **WEIGHTS[kind])  # type: ignore[arg-type]
    bias = torch.randn(shape[0], generator=random(4))
    x = torch.randn(33, shape[1], generator=random(3)) * torch.logspace(-3, 3, 33)[:, None]
    whole = wanted(weight, x, bias)
    linear = prepare(variant, weight, bias)
    for rows in (1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 33):
        assert torch.equal(linear(x[:rows]), whole[:rows]), rows


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "odd groups"])
def test_bfloat16(variant: Variant, kind: str) -> None:
    weight = grouped(33, 300, **WEIGHTS[kind])  # type: ignore[arg-type]
    bias = torch.randn(33, generator=random(4)).bfloat16()
    x = torch.randn(9, 300, generator=random(3)).bfloat16()
    y = prepare(variant, weight, bias, torch.bfloat16)(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, wanted(weight, x, bias))


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_company_instruction_set_and_threads_change_no_bit(kind: str) -> None:
    weight = grouped(100, 703, **WEIGHTS[kind])  # type: ignore[arg-type]
    x = torch.randn(256, 703, generator=random(4))
    whole = prepare(RUNS[0], weight)(x)
    for other in RUNS:
        linear = prepare(other, weight)
        for start, rows in itertools.product((0, 57), (1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 17, 64, 143)):
            part = slice(start, start + rows)
            assert torch.equal(linear(x[part]), whole[part]), (other.isa, start, rows)
        for threads, rows in itertools.product((1, 2, 3), (1, 7, 64, 256)):
            torch.set_num_threads(threads)
            assert torch.equal(linear(x[:rows]), whole[:rows]), (other.isa, threads, rows)
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    "transform",
    [
        Permute(torch.randperm(64, generator=random(5))),
        Scale(torch.rand(64, generator=random(6)) + 0.5),
        BlockHadamard(32),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_inputs_are_transformed_before_they_are_quantized(
    variant: Variant, transform: InputTransform
) -> None:
    weight = grouped(20, 64, transform=transform)
    x = torch.randn(5, 64, generator=random(3))
    assert torch.equal(prepare(variant, weight)(x), wanted(weight, x))


def test_what_is_not_finite_or_all_but_zero(variant: Variant) -> None:
    weight = grouped(20, 100)
    x = torch.randn(9, 100, generator=random(3))
    x[1, 3], x[2, 99], x[3, 40] = float("nan"), float("inf"), -float("inf")
    x[4], x[5] = 0, 1e-30
    x[6, 32:64] = 1e-38
    y, whole = prepare(variant, weight)(x), wanted(weight, x)
    assert bool(y[1:4].isnan().all())
    assert bool(whole[1:4].isnan().all())
    numbers = [0, 4, 5, 6, 7, 8]
    assert torch.equal(y[numbers], whole[numbers])
    assert bool((y[4:6] == 0).all())


def test_the_largest_products_do_not_overflow(variant: Variant) -> None:
    """Every code and input at its limit, of either sign."""
    for kind, value in itertools.product(("Q4_1", "Q8_0", "8 bits, one group", "one group"), (1.0, -1.0)):
        weight = grouped(16, 2048, **WEIGHTS[kind])  # type: ignore[arg-type]
        x = torch.full((7, 2048), value)
        assert torch.equal(prepare(variant, weight)(x), wanted(weight, x)), (kind, value)


def test_what_lies_around_the_numbers_is_never_used(variant: Variant) -> None:
    """NaN beside, before and behind the input's rows and the bias; other codes around the weight's."""
    n, k = 21, 45
    weight = grouped(n, k)
    x = torch.randn(7, k, generator=random(1))
    bias = torch.randn(n, generator=random(2))

    def poisoned(inner: Tensor, poison: float) -> Tensor:
        outer = torch.full([size + 16 for size in inner.shape], poison, dtype=inner.dtype)
        view = outer[tuple(slice(8, 8 + size) for size in inner.shape)]
        view.copy_(inner)
        return view

    nan = float("nan")
    around = GroupedIntWeight(poisoned(weight.codes, 255), weight.scales, weight.zeros, 4, 32, Zero.OFFSET)
    linear = prepare(variant, around, poisoned(bias, nan))
    out = linear(poisoned(x, nan))
    assert torch.equal(out, wanted(weight, x, bias))


def test_inputs_in_any_arrangement(variant: Variant) -> None:
    linear = prepare(variant, grouped(40, 64))
    x = torch.randn(10, 64, generator=random(1))
    whole = linear(x)
    assert torch.equal(linear(x.T.contiguous().T), whole)
    assert torch.equal(linear(torch.cat((x, x), 1)[:, 64:]), whole)
    assert linear(x[:0]).shape == (0, 40)
    with pytest.raises(ValueError, match="the input has 63 columns, the layer takes 64"):
        linear(x[:, 1:])
    with pytest.raises(ValueError, match=r"the input is torch\.bfloat16, the layer takes torch\.float32"):
        linear(x.bfloat16())


@pytest.mark.parametrize(
    ("kind", "bits_a_weight"), [("Q4_0", 4.5), ("Q4_1", 5), ("Q8_0", 8.5), ("GPTQ", 4.5)]
)
def test_memory(kind: str, bits_a_weight: float) -> None:
    linear = prepare(best(), grouped(64, 512, **WEIGHTS[kind]))  # type: ignore[arg-type]
    assert linear.nbytes * 8 == 64 * 512 * bits_a_weight
    assert "inputs in int8 by group" in linear.recipe


def test_the_loss_is_that_of_seven_bits() -> None:
    weight = grouped(64, 512)
    x = torch.randn(20, 512, generator=random(3))
    exact = CpuKernels().prepare(LinearSpec("layer", weight, CPU, torch.float32), None)(x)
    loss = (prepare(best(), weight)(x) - exact).norm() / exact.norm()
    assert 1e-4 < float(loss) < 1e-2


def test_what_has_no_integer_product_is_refused_with_the_reason() -> None:
    def reasons(weight: object, dtype: torch.dtype = torch.float32) -> str:
        return "; ".join(CpuKernels().refuses(spec(weight, dtype)))

    assert reasons(DenseWeight(torch.zeros(4, 4))) == "DenseWeight has no product with int8 inputs"
    assert "not in float16" in reasons(grouped(4, 64), torch.float16)
    long = grouped(1, LARGEST_GROUP + 1, group=LARGEST_GROUP * 2)
    assert reasons(long) == f"sums at most {LARGEST_GROUP} products of a group, not {LARGEST_GROUP + 1}"
    assert TorchKernels().refuses(spec(DenseWeight(torch.zeros(4, 4)))) != []


def test_the_reference_kernel_is_the_definition() -> None:
    weight = grouped(33, 100, transform=Scale(torch.rand(100, generator=random(6)) + 0.5))
    bias = torch.randn(33, generator=random(4))
    x = torch.randn(5, 100, generator=random(3))
    assert torch.equal(TorchKernels().prepare(spec(weight), bias)(x), wanted(weight, x, bias))
