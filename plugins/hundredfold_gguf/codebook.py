"""Blocks of 4-bit indices into sixteen values: IQ4_NL, IQ4_XS, MXFP4."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hundredfold.plugin import Codebook4Weight, LayerRequest, StoredTensor
from hundredfold_gguf.blocks import Blocks, blocks_of, by_row, halves, nibbles, planes, times

GROUP = 32

NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

FP4_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the e2m1 values, as the library has them; scales are halved for it."""


def iq4_nl(layer: LayerRequest, stored: StoredTensor) -> Codebook4Weight:
    """Half scale, 16 bytes of indices."""
    blocks = blocks_of(layer, stored, GROUP, 18)
    return _codebook(nibbles(blocks[..., 2:]), NON_LINEAR, halves(blocks, 0).float())


def iq4_xs(layer: LayerRequest, stored: StoredTensor) -> Codebook4Weight:
    """256 numbers: half scale, eight signed numbers of 6 bits that it is times, 128 bytes of indices."""
    blocks = blocks_of(layer, stored, 256, 136)
    low = blocks[..., 4:8, None] >> np.array((0, 4), np.uint8) & np.uint8(15)
    high = blocks[..., 2:4, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    whole = low.reshape(*low.shape[:2], 8) | (high.reshape(*high.shape[:2], 8) << np.uint8(4))
    scales = times(halves(blocks, 0), whole.astype(np.int8) - np.int8(32))
    return _codebook(planes(blocks[..., 8:], 16, 4), NON_LINEAR, scales)


def mxfp4(layer: LayerRequest, stored: StoredTensor) -> Codebook4Weight:
    """A power of two (e8m0), 16 bytes of indices."""
    blocks = blocks_of(layer, stored, GROUP, 17)
    return _codebook(nibbles(blocks[..., 1:]), FP4_DOUBLED, _half_powers(blocks[..., 0]))


def _codebook(codes: Blocks, values: tuple[int, ...], scales: Tensor) -> Codebook4Weight:
    codebook = torch.tensor(values, dtype=torch.float32)
    return Codebook4Weight(by_row(codes), codebook, scales.flatten(), GROUP)


def _half_powers(exponents: npt.NDArray[np.uint8]) -> Tensor:
    """2 ** (exponent - 128), float32; the two smallest are denormal."""
    wide = exponents.astype(np.uint32)
    small = np.uint32(0x00200000) << np.minimum(wide, 1)
    bits = np.where(wide < 2, small, (np.maximum(wide, 1) - 1) << np.uint32(23))
    return torch.from_numpy(bits.astype(np.uint32).view(np.float32))
