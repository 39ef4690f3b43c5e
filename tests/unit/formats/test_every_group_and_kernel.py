"""Reports 56, 65, 66: every width, group and odd size in every kernel: near the plain product, or refused."""

from __future__ import annotations

import itertools

import pytest
import torch

from hundredfold.plugin import Activations, GroupedIntWeight, LinearSpec, Zero, kernel_reasons
from hundredfold.plugin.dequantize import dequantize
from hundredfold.plugin.integer import multiply_int8
from hundredfold.plugin.registry import Registry

CPU = torch.device("cpu")
KERNELS = Registry("hundredfold.kernels")
SIZES = ((40, 160), (72, 520), (1, 96), (130, 256))
"""Rows that are no whole panels and no multiple of 64; columns that leave a group short."""
GROUPS = (16, 32, 64, 128, 256, 1 << 20)


def weight(rows: int, columns: int, bits: int, group: int, shared: bool) -> GroupedIntWeight:
    """Codes over their whole range, the highest bit among them."""
    random = torch.Generator().manual_seed(rows * bits)
    size = min(group, columns)
    groups = (rows, -(-columns // size))
    zeros = torch.randint(0, 1 << bits, groups, generator=random, dtype=torch.uint8)
    return GroupedIntWeight(
        torch.randint(0, 1 << bits, (rows, columns), generator=random, dtype=torch.uint8),
        (torch.rand(groups, generator=random) + 0.5).half() / (1 << bits),
        torch.full_like(zeros, 1 << bits - 1) if shared else zeros,
        bits,
        size,
        Zero.POINT,
    )


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("name", [name for name, _ in KERNELS.candidates()])
def test_near_the_plain_product_or_refused(name: str, bits: int) -> None:
    torch.set_num_threads(1)
    kernel, taken = KERNELS.get(name), 0
    for (rows, columns), group, shared in itertools.product(SIZES, GROUPS, (True, False)):
        own = weight(rows, columns, bits, group, shared)
        x = torch.randn(3, columns, generator=torch.Generator().manual_seed(columns))
        exact = x.double() @ dequantize(own, torch.float64).double().T
        for recipe in Activations:
            spec = LinearSpec("a", own, CPU, torch.float32, recipe)
            reasons = kernel_reasons(kernel, spec)
            if reasons:
                assert all(reason.strip() for reason in reasons)
                continue
            taken += 1
            got = kernel.prepare(spec, None)(x)
            case = f"{[rows, columns]}, groups of {own.group_size}, one zero: {shared}, {recipe}"
            wanted = multiply_int8(x, own, None).double() if recipe is Activations.INT8 else exact
            error = float((got.double() - wanted).norm() / wanted.norm())
            assert error < 1e-5, f"{case}: {error}"
            assert float((got.double() - exact).norm() / exact.norm()) < 0.05, case
    assert taken
