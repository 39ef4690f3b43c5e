"""Every method behind one interface: what it asks of a layer, and the tensors that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold_worker.quantize.awq import awq
from hundredfold_worker.quantize.channel import (
    float8_channels,
    int8_channels,
    round_tokens_float8,
    round_tokens_int8,
)
from hundredfold_worker.quantize.gptq import GroupedCodes, gptq
from hundredfold_worker.quantize.packing import WORD, pack_awq, pack_columns, pack_rows
from hundredfold_worker.quantize.recipe import WHOLE_ROW, Method, Recipe
from hundredfold_worker.quantize.statistics import InputStatistics, Wanted

NOT_CLIPPED = ("q_proj", "k_proj", "qkv_proj")
"""Layers whose ranges awq leaves whole: what their errors do to scores is not in the layer's own error."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """A linear layer, quantized."""

    matrix: Tensor
    """float32[N, K]: what readers make of the tensors."""
    tensors: Mapping[str, Tensor]
    """By suffix."""


@dataclass(frozen=True, slots=True)
class Rounder:
    """What a method is to the rest."""

    looks: Wanted
    """What rounding looks at."""
    round: Callable[[Sequence[tuple[str, Tensor]], Recipe, InputStatistics | None], list[Rounded]]
    """Quantize matrices float32[N, K] that share a recipe and inputs, by name."""
    refuses: Callable[[tuple[int, int], Recipe], str]
    """Why a shape cannot be written; empty when it can."""
    round_input: Callable[[Tensor], Tensor] | None = None
    """What serving does to inputs."""
    scales_by: Wanted = Wanted.NOTHING
    """What scales are made of that are folded into weights first; nothing where there are none."""

    @property
    def calibrates(self) -> bool:
        """Whether it needs a text."""
        return max(self.looks, self.scales_by) > Wanted.NOTHING


def _gptq(
    matrices: Sequence[tuple[str, Tensor]], recipe: Recipe, inputs: InputStatistics | None
) -> list[Rounded]:
    """Rows do not depend on each other, so layers over one input are rounded as one."""
    whole = torch.cat([matrix for _, matrix in matrices])
    codes = gptq(whole, _seen(inputs).gram, recipe)
    made, first = [], 0
    for _, matrix in matrices:
        own = codes.rows(slice(first, first + len(matrix)))
        first += len(matrix)
        made.append(Rounded(own.matrix(), gptq_tensors(own, recipe.bits)))
    return made


def gptq_tensors(codes: GroupedCodes, bits: int) -> dict[str, Tensor]:
    """The first version's tensors: zero points are stored less 1."""
    return {
        "qweight": pack_columns(codes.codes.T, bits),
        "qzeros": pack_rows((codes.zeros.T - 1).to(torch.int32), bits),
        "scales": codes.scales.T.to(torch.float16).contiguous(),
        "g_idx": codes.group_of.to(torch.int32),
    }


def _awq(
    matrices: Sequence[tuple[str, Tensor]], recipe: Recipe, inputs: InputStatistics | None
) -> list[Rounded]:
    made = []
    for name, matrix in matrices:
        codes = awq(matrix, _seen(inputs).gram, recipe, clip=not name.endswith(NOT_CLIPPED))
        made.append(Rounded(codes.matrix(), awq_tensors(codes, recipe.bits)))
    return made


def awq_tensors(codes: GroupedCodes, bits: int) -> dict[str, Tensor]:
    """The ``gemm`` version's tensors."""
    return {
        "qweight": pack_awq(codes.codes.T.contiguous(), bits),
        "qzeros": pack_awq(codes.zeros.T.to(torch.int32).contiguous(), bits),
        "scales": codes.scales.T.to(torch.float16).contiguous(),
    }


def _int8(
    matrices: Sequence[tuple[str, Tensor]], recipe: Recipe, inputs: InputStatistics | None
) -> list[Rounded]:
    return [_channels(*int8_channels(matrix)) for _, matrix in matrices]


def _fp8(
    matrices: Sequence[tuple[str, Tensor]], recipe: Recipe, inputs: InputStatistics | None
) -> list[Rounded]:
    return [_channels(*float8_channels(matrix)) for _, matrix in matrices]


def _channels(codes: Tensor, scales: Tensor) -> Rounded:
    return Rounded(codes.float() * scales.float(), {"weight": codes, "weight_scale": scales})


def _grouped_refuses(shape: tuple[int, int], recipe: Recipe) -> str:
    rows, columns = shape
    if recipe.group_size != WHOLE_ROW and columns % recipe.group_size:
        fitting = [size for size in (16, 32, 64, 128) if columns % size == 0 and size <= columns]
        sizes = f"{', '.join(map(str, fitting))} or -1" if fitting else "-1"
        return f"{columns} columns are no multiple of the group size {recipe.group_size}; {sizes} would do"
    if rows * recipe.bits % WORD:
        return f"{rows} rows of {recipe.bits} bits do not fill words of {WORD}"
    return ""


def _gptq_refuses(shape: tuple[int, int], recipe: Recipe) -> str:
    if shape[1] * recipe.bits % WORD:
        return f"{shape[1]} columns of {recipe.bits} bits do not fill words of {WORD}"
    return _grouped_refuses(shape, recipe)


def _nothing_refuses(shape: tuple[int, int], recipe: Recipe) -> str:
    return ""


_ROW_DIMENSION = {"qweight": 1, "qzeros": 1, "scales": 1, "weight": 0, "weight_scale": 0}
"""Along which dimension of a tensor a matrix's rows lie, by suffix; others are the same for all rows."""


def join_rows(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of a matrix that was rounded in parts, each of whole words of rows."""
    return {
        suffix: torch.cat([part[suffix] for part in parts], _ROW_DIMENSION[suffix])
        if suffix in _ROW_DIMENSION
        else tensor
        for suffix, tensor in parts[0].items()
    }


ROUNDERS: Mapping[Method, Rounder] = {
    Method.GPTQ: Rounder(Wanted.PRODUCTS, _gptq, _gptq_refuses),
    Method.AWQ: Rounder(Wanted.PRODUCTS, _awq, _grouped_refuses, scales_by=Wanted.PRODUCTS),
    Method.SMOOTHQUANT: Rounder(
        Wanted.NOTHING, _int8, _nothing_refuses, round_tokens_int8, scales_by=Wanted.SIZES
    ),
    Method.INT8: Rounder(Wanted.NOTHING, _int8, _nothing_refuses, round_tokens_int8),
    Method.FP8: Rounder(Wanted.NOTHING, _fp8, _nothing_refuses, round_tokens_float8),
}


def _seen(inputs: InputStatistics | None) -> InputStatistics:
    if inputs is None:
        raise ValueError("this method needs the layer's inputs")
    return inputs
