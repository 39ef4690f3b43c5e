"""Captured look-ups give the bits of `dequantize`, in every form that they take, on every instruction set."""

from __future__ import annotations

import pytest
import torch

from hundredfold.plugin import CanonicalWeight, ChannelInt8Weight, DenseWeight, GroupedIntWeight, Zero
from hundredfold.plugin.dequantize import dequantize
from hundredfold_cpu.elementwise import CpuOperations
from hundredfold_cpu.library import Variant, variants

VOCABULARY = 37


def _grouped(
    columns: int, group: int, zero: Zero | None, dtype: torch.dtype, signed: bool
) -> GroupedIntWeight:
    groups = -(-columns // group)
    low, high = (-128, 128) if signed else (0, 256)
    codes = torch.randint(low, high, (VOCABULARY, columns)).to(torch.int8 if signed else torch.uint8)
    zeros = None if zero is None else torch.randn(VOCABULARY, groups).to(dtype)
    scales = torch.rand(VOCABULARY, groups).to(dtype)
    return GroupedIntWeight(codes, scales, zeros, 8, group, zero or Zero.POINT)


def _weights() -> dict[str, CanonicalWeight]:
    return {
        "dense": DenseWeight(torch.randn(VOCABULARY, 50)),
        "signed": _grouped(96, 32, None, torch.float16, signed=True),
        "points": _grouped(70, 32, Zero.POINT, torch.float32, signed=False),
        "offsets": _grouped(70, 20, Zero.OFFSET, torch.float16, signed=False),
    }


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant.isa)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 25.298221281347036])
@pytest.mark.parametrize("name", sorted(_weights()))
def test_a_row_has_the_bits_of_dequantize(
    variant: Variant, dtype: torch.dtype, factor: float, name: str
) -> None:
    torch.manual_seed(3)
    weight = _weights()[name]
    operations = CpuOperations(variant, dtype)
    expected = dequantize(weight, torch.float32).to(dtype).clone().mul_(factor)
    rows, out = torch.tensor([5, 0, 36, 5]), torch.full((4, 101), 7.0, dtype=dtype)
    call = operations.capture_lookup(weight, factor, rows, out[:, : expected.shape[1]])
    assert call is not None
    operations.program([call])(3)
    assert torch.equal(out[:3, : expected.shape[1]], expected[rows[:3]])
    assert (out[:3, expected.shape[1] :] == 7).all()
    assert (out[3] == 7).all()


@pytest.mark.parametrize("row", [-1, VOCABULARY, 1 << 40])
def test_a_number_without_a_row_gives_nan(row: int) -> None:
    operations = CpuOperations(variants()[0], torch.float32)
    out = torch.zeros(2, 50)
    call = operations.capture_lookup(_weights()["dense"], 1.0, torch.tensor([row, 1]), out)
    assert call is not None
    operations.program([call])(2)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_other_forms_are_left_to_torch() -> None:
    operations = CpuOperations(variants()[0], torch.float32)
    rows, out = torch.zeros(1, dtype=torch.int64), torch.empty(1, 8)
    channel = ChannelInt8Weight(torch.zeros(4, 8, dtype=torch.int8), torch.ones(4))
    mixed = GroupedIntWeight(
        torch.zeros(4, 8, dtype=torch.uint8), torch.ones(4, 1), torch.ones(4, 1).half(), 8, 8, Zero.POINT
    )
    assert operations.capture_lookup(channel, 1.0, rows, out) is None
    assert operations.capture_lookup(mixed, 1.0, rows, out) is None
