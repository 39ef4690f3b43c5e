"""Random canonical weights of every kind, in shapes that kernels get wrong: odd rows, short last groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from hundredfold.plugin import (
    BlockHadamard,
    CanonicalWeight,
    ChannelInt8Weight,
    Codebook4Weight,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    InputTransform,
    Permute,
    Scale,
    Zero,
)

SHAPES = ((48, 64), (33, 96), (7, 32))
"""Output and input features."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A weight and the name of its case."""

    name: str
    weight: CanonicalWeight
    quantizes_input: bool = False
    """Whether a kernel's recipe for this kind may quantize the activations to 8 bits per token."""


def samples(device: torch.device, seed: int = 0) -> Iterator[Sample]:
    """Every kind of weight in every shape, then each input transform on a kind of each sort."""
    random = torch.Generator().manual_seed(seed)
    for rows, columns in SHAPES:
        shape = f"[{rows}, {columns}]"
        for sample in _kinds(rows, columns, random):
            yield Sample(f"{sample.name} {shape}", _to(sample.weight, device), sample.quantizes_input)
    rows, columns = SHAPES[0]
    transforms: dict[str, InputTransform] = {
        "permute": Permute(torch.randperm(columns, generator=random).to(device)),
        "scale": Scale((torch.rand(columns, generator=random) + 0.5).to(device)),
        "hadamard 32": BlockHadamard(32),
    }
    for sample in _kinds(rows, columns, random):
        for name, transform in transforms.items():
            weight = replace(_to(sample.weight, device), transform=transform)
            yield Sample(f"{sample.name} after {name}", weight, sample.quantizes_input)


def _kinds(rows: int, columns: int, random: torch.Generator) -> Iterator[Sample]:
    matrix = torch.randn(rows, columns, generator=random) * 0.2
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield Sample(f"dense {_name(dtype)}", DenseWeight(matrix.to(dtype)))
    codes = torch.randint(-127, 128, (rows, columns), generator=random, dtype=torch.int8)
    yield Sample("channel int8", ChannelInt8Weight(codes, _scales(random, rows)), quantizes_input=True)
    yield from _grouped(rows, columns, random)
    yield from _float8(matrix, random)
    codebook = torch.linspace(-1, 1, 16) ** 3
    indices = torch.randint(0, 16, (rows, columns), generator=random, dtype=torch.uint8)
    # The groups of 32 run over the flattened matrix; with 96 columns and 64 they cross its rows.
    for size in (32, 64):
        if rows * columns % size == 0:
            weight = Codebook4Weight(indices, codebook, _scales(random, rows * columns // size), size)
            yield Sample(f"codebook4 group {size}", weight)


def _grouped(rows: int, columns: int, random: torch.Generator) -> Iterator[Sample]:
    for bits, group, scale_type in (
        (4, 32, torch.float16),
        (4, 16, torch.float32),
        (4, columns, torch.bfloat16),
        (8, 32, torch.float16),
        (3, 32, torch.float32),
        (2, 16, torch.float16),
        (4, 40, torch.float16),  # the last group is short
    ):
        groups = -(-columns // group)
        codes = torch.randint(0, 2**bits, (rows, columns), generator=random, dtype=torch.uint8)
        scales = _scales(random, rows, groups).to(scale_type)
        points = torch.randint(0, 2**bits, (rows, groups), generator=random, dtype=torch.uint8)
        name = f"int{bits} group {group} {_name(scale_type)}"
        point = GroupedIntWeight(codes, scales, points, bits, group, Zero.POINT)
        yield Sample(f"{name} zero points", point)
        yield Sample(f"{name} float zero points", replace(point, zeros=points.to(scale_type)))
        offsets = (-scales.float() * 2 ** (bits - 1)).to(scale_type)
        yield Sample(f"{name} offsets", replace(point, zeros=offsets, zero=Zero.OFFSET))
        signed = (codes.int() - 2 ** (bits - 1)).to(torch.int8)
        yield Sample(f"{name} signed", replace(point, codes=signed, zeros=None))


def _float8(matrix: Tensor, random: torch.Generator) -> Iterator[Sample]:
    rows, columns = matrix.shape
    codes = (matrix * 40).to(torch.float8_e4m3fn)
    yield Sample("float8 one scale", Float8Weight(codes, torch.tensor(0.02)))
    yield Sample("float8 row scales", Float8Weight(codes, _scales(random, rows, 1)))
    block = (16, 40)  # neither divides the shapes
    scales = _scales(random, -(-rows // block[0]), -(-columns // block[1]))
    yield Sample("float8 block scales", Float8Weight(codes, scales, block))


def _scales(random: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=random) * 0.02 + 0.005


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _to(weight: CanonicalWeight, device: torch.device) -> CanonicalWeight:
    moved: dict[str, Any] = {
        field.name: getattr(weight, field.name).to(device)
        for field in fields(weight)
        if isinstance(getattr(weight, field.name), Tensor)
    }
    return replace(weight, **moved)
