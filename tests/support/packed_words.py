"""Packs quantized matrices as GPTQ and AWQ checkpoints hold them, straight from the formats' definition.

Written apart from the readers: whole bits here, bytes and masks there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The feature that each place of a run of eight holds."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quantized:
    """A matrix in integers, ``w[n, k] = scales[n, owner[k]] * (codes[n, k] - zeros[n, owner[k]])``."""

    codes: Numbers
    """[N, K]."""
    zeros: Numbers
    """[N, groups]."""
    scales: Tensor
    """[N, groups] in the type that is stored."""
    owner: Numbers
    """The group of each column, [K]."""
    bits: int

    @property
    def matrix(self) -> Tensor:
        """float32[N, K], by the formula in float32."""
        integers = torch.from_numpy(self.codes - self.zeros[:, self.owner]).float()
        return self.scales.float()[:, self.owner] * integers


def round_to_nearest(
    matrix: Tensor,
    bits: int,
    group: int,
    *,
    symmetric: bool = False,
    act_order: bool = False,
    kind: torch.dtype = torch.float16,
    seed: int = 0,
) -> Quantized:
    """``matrix`` [N, K] in groups of ``group`` columns, -1 for whole rows; ``act_order`` strews them.

    A few zero points are the smallest and the largest there are.
    """
    rows, columns = matrix.shape
    size = columns if group == -1 else group
    order = np.random.default_rng(seed).permutation(columns) if act_order else np.arange(columns)
    owner = np.empty(columns, dtype=np.int64)
    owner[order] = np.arange(columns) // size
    groups = -(-columns // size)
    scales, zeros = torch.empty(rows, groups), torch.empty(rows, groups)
    top = 2**bits - 1
    for index in range(groups):
        own = matrix[:, torch.from_numpy(owner == index)].float()
        if symmetric:
            scales[:, index] = own.abs().amax(1) * 2 / top
            zeros[:, index] = 2 ** (bits - 1)
        else:
            low, high = own.amin(1).clamp(max=0), own.amax(1).clamp(min=0)
            scales[:, index] = (high - low) / top
            zeros[:, index] = (-low / scales[:, index]).round().clamp(0, top)
    if not symmetric:
        zeros[0], zeros[-1] = 0, top
    scales = scales.to(kind)
    codes = (matrix.float() / scales.float()[:, owner] + zeros[:, owner]).round().clamp(0, top)
    return Quantized(codes.numpy().astype(np.int64), zeros.numpy().astype(np.int64), scales, owner, bits)


def stream(numbers: Numbers, bits: int) -> Tensor:
    """Each row as one run of bits, the lowest first, in words int32[rows, ceil(columns * bits / 32)]."""
    rows = len(numbers)
    every = (numbers[..., None] >> np.arange(bits) & 1).reshape(rows, -1).astype(np.uint8)
    filled = np.pad(every, ((0, 0), (0, -every.shape[1] % 32)))
    words = np.packbits(filled, axis=1, bitorder="little").view("<i4")
    return torch.from_numpy(words.astype(np.int32))


def gptq_tensors(name: str, layer: Quantized, version: int = 1, *, g_idx: bool = True) -> dict[str, Tensor]:
    """Words run down the input features; the first version stores zero points less one."""
    zeros = layer.zeros - 1 & 2**layer.bits - 1 if version == 1 else layer.zeros
    tensors = {
        "qweight": stream(layer.codes, layer.bits).T,
        "qzeros": stream(np.ascontiguousarray(zeros.T), layer.bits),
        "scales": layer.scales.T,
    }
    if g_idx:
        tensors["g_idx"] = torch.from_numpy(layer.owner.astype(np.int32))
    return {f"{name}.{part}": tensor.contiguous() for part, tensor in tensors.items()}


def awq_tensors(name: str, layer: Quantized) -> dict[str, Tensor]:
    """Words run along the output features, with 4 bits each eight of them in an order of their own."""
    tensors = {
        "qweight": stream(_in_order(layer.codes.T, layer.bits), layer.bits),
        "qzeros": stream(_in_order(layer.zeros.T, layer.bits), layer.bits),
        "scales": layer.scales.T,
    }
    return {f"{name}.{part}": tensor.contiguous() for part, tensor in tensors.items()}


def _in_order(numbers: Numbers, bits: int) -> Numbers:
    if bits != 4:
        return np.ascontiguousarray(numbers)
    runs = numbers.reshape(len(numbers), -1, 8)
    return np.ascontiguousarray(runs[..., AWQ_ORDER]).reshape(numbers.shape)
