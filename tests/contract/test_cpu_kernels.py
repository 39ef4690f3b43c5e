"""The C++ linear layers: the suite on every instruction set, and the same bits in any company."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import DenseWeight, GroupedIntWeight, LinearSpec, Zero
from hundredfold.plugin.dequantize import dequantize
from hundredfold.plugin.testing import check_kernel
from hundredfold_cpu.kernels import CpuKernels, CpuLinear
from hundredfold_cpu.library import OVERRIDE, Variant, best, variants

CPU = torch.device("cpu")
RUNS = variants()

SHAPES = [(960, 576), (49, 1536), (1, 64), (16, 1), (17, 2), (33, 47), (31, 321), (100, 703)]
"""Odd tails of panels, blocks and groups; one column."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
) -> GroupedIntWeight:
    """Random codes over the whole range, and scales of both signs."""
    codes = torch.randint(0, 1 << bits, (n, k), dtype=torch.uint8, generator=random())
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
    return GroupedIntWeight(codes, scales, own, bits, group, zero)


WEIGHTS = {
    "Q4_0": {"zero": Zero.POINT, "zeros": "same"},
    "Q4_1": {},
    "Q8_0": {"bits": 8, "zero": Zero.POINT, "zeros": "none", "signed": True},
    "GPTQ": {"group": 128, "zero": Zero.POINT},
    "AWQ in bf16": {"group": 64, "zero": Zero.POINT, "dtype": torch.bfloat16},
    "float scales": {"dtype": torch.float32},
    "3 bits": {"bits": 3, "zero": Zero.POINT},
    "2 bits": {"bits": 2},
    "6 bits, signed": {"bits": 6, "zero": Zero.POINT, "signed": True},
    "8 bits": {"bits": 8, "group": 16},
    "4 bits, signed, no zeros": {"zero": Zero.POINT, "zeros": "none", "signed": True},
    "signed with offsets": {"signed": True},
    "odd groups": {"group": 17},
    "one group": {"group": 4096},
}
"""Options of ``grouped`` for every arrangement that the kernel tells apart."""


def prepare(variant: Variant, weight: object, bias: Tensor | None = None) -> CpuLinear:
    return CpuKernels(variant).prepare(LinearSpec("layer", weight, CPU, torch.float32), bias)  # type: ignore[arg-type]


def chain(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """One fused multiply-add after the other; float64 makes each, all but surely."""
    sums = torch.zeros(len(x), len(matrix))
    for k in range(x.shape[1]):
        sums = (sums.double() + x[:, k, None].double() * matrix[:, k].double()).float()
    return sums if bias is None else sums + bias


@pytest.fixture(params=RUNS, ids=lambda variant: variant.isa)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param  # type: ignore[no-any-return]


def test_suite(variant: Variant) -> None:
    report = check_kernel(CpuKernels(variant))
    assert all("int8 inputs" in case for case in report.refused)
    assert report.accepted


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_each_output_is_one_chain(variant: Variant, shape: tuple[int, int], has_bias: bool) -> None:
    n, k = shape
    matrix = torch.randn(n, k, generator=random())
    bias = torch.randn(n, generator=random(1)) if has_bias else None
    x = torch.randn(9, k, generator=random(2))
    assert torch.equal(prepare(variant, DenseWeight(matrix), bias)(x), chain(x, matrix, bias))


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("shape", [(49, 576), (33, 47), (1, 1), (16, 701)], ids=str)
def test_packed_weights_give_the_bits_of_dense_ones(
    variant: Variant, kind: str, shape: tuple[int, int]
) -> None:
    weight = grouped(*shape, **WEIGHTS[kind])  # type: ignore[arg-type]
    packed = prepare(variant, weight)
    dense = prepare(variant, DenseWeight(dequantize(weight, torch.float32)))
    x = torch.randn(70, shape[1], generator=random(3))
    whole = dense(x)
    for rows in (1, 2, 3, 4, 5, 6, 7, 13, 70):
        assert torch.equal(packed(x[:rows]), whole[:rows]), rows


@pytest.mark.parametrize(
    "weight", [DenseWeight(torch.randn(100, 703, generator=random())), grouped(100, 703)]
)
def test_company_instruction_set_and_threads_change_no_bit(weight: object) -> None:
    x = torch.randn(200, 703, generator=random(4))
    first = prepare(RUNS[0], weight)
    whole = first(x)
    for other in RUNS:
        linear = prepare(other, weight)
        for start, rows in itertools.product((0, 57), (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 64, 143)):
            part = slice(start, start + rows)
            assert torch.equal(linear(x[part]), whole[part]), (other.isa, start, rows)
        for threads, rows in itertools.product((2, 3), (1, 2, 3, 200)):
            torch.set_num_threads(threads)
            assert torch.equal(linear(x[:rows]), whole[:rows]), (other.isa, threads, rows)
        torch.set_num_threads(1)


def test_what_lies_around_the_numbers_is_never_used(variant: Variant) -> None:
    """NaN beside, before and behind the input's rows, the weight's and the bias."""
    n, k = 21, 45
    matrix = torch.randn(n, k, generator=random())
    x = torch.randn(7, k, generator=random(1))
    bias = torch.randn(n, generator=random(2))

    def poisoned(inner: Tensor) -> Tensor:
        outer = torch.full([size + 16 for size in inner.shape], float("nan"))
        view = outer[tuple(slice(8, 8 + size) for size in inner.shape)]
        view.copy_(inner)
        return view

    linear = prepare(variant, DenseWeight(poisoned(matrix)), poisoned(bias))
    assert torch.equal(linear(poisoned(x)), chain(x, matrix, bias))


def test_inputs_in_any_arrangement(variant: Variant) -> None:
    matrix = torch.randn(40, 64, generator=random())
    linear = prepare(variant, DenseWeight(matrix.T.contiguous().T))
    x = torch.randn(10, 64, generator=random(1))
    wanted = linear(x)
    assert torch.equal(linear(x.T.contiguous().T), wanted)
    assert torch.equal(linear(torch.stack((x, x), dim=-1).flatten(1)[:, ::2]), wanted)
    assert torch.equal(linear(x.flip(0).flip(0)), wanted)
    assert linear(x[:0]).shape == (0, 40)
    with pytest.raises(ValueError, match="the input has 63 columns, the layer takes 64"):
        linear(x[:, 1:])


@pytest.mark.parametrize(
    ("kind", "bits_a_weight"),
    [("Q4_0", 4.5), ("Q4_1", 5), ("Q8_0", 8.5), ("GPTQ", 4.25), ("2 bits", 5), ("signed with offsets", 32)],
)
def test_memory(kind: str, bits_a_weight: float) -> None:
    weight = grouped(64, 512, **WEIGHTS[kind])  # type: ignore[arg-type]
    linear = prepare(best(), weight)
    assert linear.nbytes * 8 == 64 * 512 * bits_a_weight
    assert ("in float32, product" in linear.recipe) is (bits_a_weight == 32)


def test_the_environment_names_an_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, "portable")
    assert best().isa == "portable"
    monkeypatch.setenv(OVERRIDE, "sse9")
    with pytest.raises(ValueError, match=f"{OVERRIDE} is 'sse9'; this processor runs .*portable"):
        best()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_there_is_one_thread_pool() -> None:
    prepare(best(), DenseWeight(torch.randn(64, 64)))(torch.randn(64, 64))
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    runtimes = {path for path in mapped if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))}
    assert len(runtimes) == 1, runtimes
