"""Joining rows of canonical weights: the same product, or none where formats differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hundredfold.plugin import (
    BlockHadamard,
    CanonicalWeight,
    ChannelInt8Weight,
    Codebook4Weight,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    Permute,
    Zero,
)
from hundredfold.plugin.dequantize import dequantize
from hundredfold_worker.model.canonical import join_rows, to_device

K = 40


def grouped(rows: int, zero: Zero = Zero.OFFSET, bits: int = 4, group: int = 16) -> GroupedIntWeight:
    groups = -(-K // group)
    return GroupedIntWeight(
        codes=torch.randint(0, 2**bits, (rows, K), dtype=torch.uint8),
        scales=torch.rand(rows, groups).half(),
        zeros=torch.rand(rows, groups).half(),
        bits=bits,
        group_size=group,
        zero=zero,
    )


def int8(rows: int) -> ChannelInt8Weight:
    return ChannelInt8Weight(torch.randint(-127, 128, (rows, K), dtype=torch.int8), torch.rand(rows))


def codebook4(rows: int, group: int = 8) -> Codebook4Weight:
    codes = torch.randint(0, 16, (rows, K), dtype=torch.uint8)
    return Codebook4Weight(codes, torch.linspace(-1, 1, 16), torch.rand(-(-rows * K // group)), group)


@pytest.mark.parametrize("make", [lambda n: DenseWeight(torch.randn(n, K)), grouped, int8, codebook4])
def test_rows_of_one_format_are_joined(make: object) -> None:
    weights: list[CanonicalWeight] = [make(n) for n in (3, 5, 2)]  # type: ignore[operator]
    joined = join_rows(weights)
    assert joined is not None
    wanted = torch.cat([dequantize(weight, torch.float32) for weight in weights])
    assert torch.equal(dequantize(joined, torch.float32), wanted)


@pytest.mark.parametrize(
    "others",
    [
        [DenseWeight(torch.randn(3, K))],
        [grouped(3, zero=Zero.POINT)],
        [grouped(3, bits=8)],
        [grouped(3, group=32)],
        [replace(grouped(3), zeros=None)],
        [replace(grouped(3), scales=torch.rand(3, 3))],
        [replace(grouped(3), transform=BlockHadamard(8))],
        [int8(3)],
    ],
)
def test_rows_of_two_formats_are_not(others: list[CanonicalWeight]) -> None:
    assert join_rows([grouped(4), *others]) is None


def test_rows_over_columns_of_one_order_are_joined() -> None:
    """Layers that were quantized by the same input's statistics have the same order of columns."""
    order = torch.randperm(K)
    first, second = (replace(grouped(n), transform=Permute(order.clone())) for n in (3, 5))
    joined = join_rows([first, second])
    assert joined is not None
    assert isinstance(joined.transform, Permute)
    assert torch.equal(joined.transform.index, order)
    wanted = torch.cat([dequantize(weight, torch.float32) for weight in (first, second)])
    assert torch.equal(dequantize(joined, torch.float32), wanted)
    assert join_rows([first, replace(second, transform=Permute(order.flip(0)))]) is None
    assert join_rows([first, replace(second, transform=None)]) is None
    assert join_rows([replace(first, transform=None), second]) is None


def test_a_format_with_one_scale_for_all_is_not_joined() -> None:
    weight = Float8Weight(torch.randn(3, K).to(torch.float8_e4m3fn), torch.tensor(0.1))
    assert join_rows([weight, weight]) is None


def float8(rows: int, block: tuple[int, int] | None = None) -> Float8Weight:
    shape = (rows, 1) if block is None else (-(-rows // block[0]), -(-K // block[1]))
    return Float8Weight(torch.randn(rows, K).to(torch.float8_e4m3fn), torch.rand(shape), block)


def test_8_bit_floats_are_joined_where_a_block_ends_with_its_layer() -> None:
    for weights in ([float8(3), float8(5)], [float8(4, (2, 16)), float8(6, (2, 16))]):
        joined = join_rows(weights)
        assert joined is not None
        wanted = torch.cat([dequantize(weight, torch.float32) for weight in weights])
        assert torch.equal(dequantize(joined, torch.float32), wanted)
    assert join_rows([float8(3, (2, 16)), float8(4, (2, 16))]) is None
    assert join_rows([float8(4, (4, 16)), float8(4, (2, 16))]) is None
    assert join_rows([float8(4), float8(4, (2, 16))]) is None


def test_tensors_of_the_transform_move_too() -> None:
    weight = replace(grouped(3), transform=Permute(torch.randperm(K)))
    moved = to_device(weight, torch.device("meta"))
    assert isinstance(moved, GroupedIntWeight)
    assert isinstance(moved.transform, Permute)
    assert {moved.codes.device.type, moved.scales.device.type, moved.transform.index.device.type} == {"meta"}
    assert moved.bits == 4
