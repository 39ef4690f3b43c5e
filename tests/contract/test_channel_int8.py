"""int8 weights by channel times int8 inputs: the bits of the definition, on every instruction set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hundredfold.plugin import Activations, BlockHadamard, ChannelInt8Weight, LinearSpec, Permute, Scale
from hundredfold.plugin.dequantize import dequantize, fold_transform, rotate, transform_input
from hundredfold.plugin.integer import multiply_channels
from hundredfold.plugin.testing import reference_linear
from hundredfold.plugin.testing.reference import hadamard
from hundredfold_cpu.kernels import CpuKernels, CpuLinear
from hundredfold_cpu.library import Variant, variants
from hundredfold_torch.kernels import TorchKernels

CPU = torch.device("cpu")
SHAPES = [(960, 576), (49, 1536), (1, 64), (16, 1), (17, 2), (33, 47), (31, 322), (64, 1024)]
"""Odd tails of panels and steps; columns that 64 does not divide."""
ROWS = (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 24, 70)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=variants(), ids=lambda variant: variant.isa)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param  # type: ignore[no-any-return]


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weight(n: int, k: int, block: int | None = None) -> ChannelInt8Weight:
    """Codes over the whole range, -128 too; rotated by the largest block that divides, up to 64."""
    codes = torch.randint(-128, 128, (n, k), dtype=torch.int8, generator=random(n))
    block = min(64, k & -k) if block is None else block
    return ChannelInt8Weight(
        codes, torch.rand(n, generator=random(k)) * 0.02, BlockHadamard(block) if block > 1 else None
    )


def prepare(
    variant: Variant,
    weight: ChannelInt8Weight,
    dtype: torch.dtype = torch.float32,
    bias: Tensor | None = None,
) -> CpuLinear:
    linear = CpuKernels(variant).prepare(LinearSpec("l", weight, CPU, dtype, Activations.INT8), bias)
    assert linear.kernel.startswith("channel_int8")
    return linear


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_those_of_the_definition(
    variant: Variant, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    own = weight(*shape)
    bias = torch.randn(shape[0], generator=random(1)).to(dtype)
    x = (torch.randn(max(ROWS), shape[1], generator=random(2)) * 3).to(dtype)
    linear, wanted = prepare(variant, own, dtype, bias), multiply_channels(x, own, bias)
    for rows in ROWS:
        assert torch.equal(linear(x[:rows]), wanted[:rows]), rows


@pytest.mark.parametrize("block", [1, 2, 4, 8, 16, 32, 64, 128, 512])
def test_every_size_of_rotation(variant: Variant, block: int) -> None:
    own = weight(20, 1536, block)
    x = torch.randn(5, 1536, generator=random(3))
    assert torch.equal(prepare(variant, own)(x), multiply_channels(x, own, None))
    by_matrix = (x.double().view(5, -1, block) @ hadamard(block)).view(5, -1)
    assert torch.allclose(rotate(x, block).double(), by_matrix, atol=1e-5)


def test_company_and_threads_change_no_bit(variant: Variant) -> None:
    own = weight(3 * 16 + 5, 703 * 2)
    x = torch.randn(256, 1406, generator=random(4))
    linear = prepare(variant, own)
    whole = linear(x)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for start, rows in ((0, 1), (3, 7), (100, 64), (0, 256)):
            assert torch.equal(linear(x[start : start + rows]), whole[start : start + rows])


@pytest.mark.parametrize("n", [49_152, 49_200])
def test_outputs_that_no_cache_holds_are_those_of_fewer_rows(variant: Variant, n: int) -> None:
    linear = prepare(variant, weight(n, 64), torch.bfloat16)
    x = torch.randn(96, 64, generator=random(5)).bfloat16()
    whole = linear(x)
    for start in (0, 32, 64):
        assert torch.equal(linear(x[start : start + 32]), whole[start : start + 32])


def test_largest_sums_do_not_overflow(variant: Variant) -> None:
    columns = 1 << 17
    own = ChannelInt8Weight(torch.full((17, columns), -128, dtype=torch.int8), torch.ones(17))
    x = torch.full((2, columns), -1.0)
    assert torch.equal(prepare(variant, own)(x), multiply_channels(x, own, None))
    assert float(prepare(variant, own)(x)[0, 0]) == pytest.approx(128.0 * columns)


def test_rows_that_are_not_finite_are_nan_and_leave_the_others_alone(variant: Variant) -> None:
    own = weight(33, 128)
    x = torch.randn(6, 128, generator=random(5))
    clean = prepare(variant, own)(x)
    for bad in (float("nan"), float("inf"), float("-inf")):
        spoilt = x.clone()
        spoilt[2, 77] = bad
        y = prepare(variant, own)(spoilt)
        assert bool(y[2].isnan().all())
        assert torch.equal(y[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])


def test_rows_of_nothing_give_the_bias(variant: Variant) -> None:
    own, bias = weight(20, 64), torch.arange(20.0)
    x = torch.stack([torch.zeros(64), torch.full((64,), 1e-38)])
    assert torch.equal(prepare(variant, own, bias=bias)(x), bias.expand(2, -1))


def test_strided_input_is_left_as_it_is(variant: Variant) -> None:
    own = weight(33, 64)
    wide = torch.randn(5, 200, generator=random(6))
    before = wide.clone()
    linear = prepare(variant, own)
    assert torch.equal(linear(wide[:, 100:164]), linear(wide[:, 100:164].contiguous()))
    assert torch.equal(linear(wide.T[:64, :5].T), linear(wide[:5, :64].contiguous()))
    assert torch.equal(wide, before)


def test_loss_of_the_recipe_is_small() -> None:
    """Against the float64 product of the same codes: only the inputs are rounded."""
    own = weight(64, 576)
    x = torch.randn(16, 576, generator=random(7))
    spec = LinearSpec("l", own, CPU, torch.float32, Activations.INT8)
    y, wanted = TorchKernels().prepare(spec, None)(x).double(), reference_linear(own, x)
    assert 1e-4 < float((y - wanted).norm() / wanted.norm()) < 2e-2


def test_what_cannot_be_computed_is_refused_with_its_reason() -> None:
    kernel = CpuKernels()
    codes, scales = torch.zeros(16, 64, dtype=torch.int8), torch.ones(16)
    scaled = ChannelInt8Weight(codes, scales, Scale(torch.ones(64)))
    assert "Scale" in str(kernel.refuses(LinearSpec("l", scaled, CPU, torch.float32, Activations.INT8)))
    plain = ChannelInt8Weight(codes, scales)
    assert "float16" in str(kernel.refuses(LinearSpec("l", plain, CPU, torch.float16, Activations.INT8)))
    long = ChannelInt8Weight(torch.zeros(1, (1 << 17) + 1, dtype=torch.int8), torch.ones(1))
    assert "131072" in str(kernel.refuses(LinearSpec("l", long, CPU, torch.float32, Activations.INT8)))
    linear = prepare(variants()[0], plain)
    with pytest.raises(ValueError, match="64"):
        linear(torch.zeros(1, 63))


@pytest.mark.parametrize(
    "transform",
    [None, Permute(torch.randperm(96, generator=random(8))), Scale(torch.rand(96)), BlockHadamard(32)],
    ids=lambda transform: type(transform).__name__,
)
def test_a_folded_transform_gives_the_same_layer(transform: object) -> None:
    own = ChannelInt8Weight(weight(20, 96).codes, torch.ones(20), transform)  # type: ignore[arg-type]
    x = torch.randn(4, 96, generator=random(9))
    folded = fold_transform(dequantize(own, torch.float32), own.transform)
    wanted = transform_input(x, own.transform) @ dequantize(own, torch.float32).T
    assert torch.allclose(x @ folded.T, wanted, atol=1e-3, rtol=1e-4)
