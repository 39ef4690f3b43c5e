"""Sampling noise: an exponential variate that is a function of seed, choice, output position and token id.

Drawing the token with the least ``noise / weight`` is the Gumbel-max rule: it draws each token with
probability proportional to its weight. Nothing else feeds the noise, so a token is drawn alike in any row of
any batch, in any part of the vocabulary and on any device. The hash is Wellons' 32-bit xorshift-multiply with
a 64-bit key woven in; the key comes from Stafford's 64-bit mixer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

U32 = NDArray[np.uint32]

_A, _B = 0x21F0AAAD, 0xD35A2D97
_MASK = 0xFFFFFFFF
_STAFFORD = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def row_keys(
    seeds: NDArray[np.uint64], choices: NDArray[np.uint64], positions: NDArray[np.uint64]
) -> NDArray[np.uint32]:
    """Keys of the noise, uint32[R, 2], from three uint64[R]; choices and positions are below 2**32."""
    mixed = _mix64(seeds + _GOLDEN)
    mixed = _mix64(mixed + ((choices << np.uint64(32)) | positions))
    return np.stack([(mixed >> np.uint64(32)), mixed & np.uint64(_MASK)], axis=1).astype(np.uint32)


def spread(token_ids: NDArray[Any]) -> U32:
    """First stage of the hash, the same for every key: uint32 of any shape. Worth keeping."""
    x = token_ids.astype(np.uint32)
    x ^= x >> np.uint32(16)
    x *= np.uint32(_A)
    x ^= x >> np.uint32(15)
    x *= np.uint32(_B)
    x ^= x >> np.uint32(15)
    return x


def bits(key0: Any, key1: Any, spread_ids: U32) -> U32:
    """Second stage: 32 uniform bits for each spread id; keys are uint32 that broadcast."""
    x: U32 = spread_ids ^ key0
    x ^= x >> np.uint32(16)
    x *= np.uint32(_A)
    x ^= x >> np.uint32(15)
    x += key1
    x *= np.uint32(_B)
    x ^= x >> np.uint32(15)
    return x


def bits_tensor(keys: Tensor, spread_ids: Tensor) -> Tensor:
    """The same bits as :func:`bits` on any device: keys int64[R, 2] and ids int64[R, n] to int64[R, n]."""
    x = spread_ids ^ keys[:, :1]
    x = ((x ^ (x >> 16)) * _A) & _MASK
    x = x ^ (x >> 15)
    x = (((x + keys[:, 1:]) & _MASK) * _B) & _MASK
    return x ^ (x >> 15)


def exponential(uniform_bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Exponential variates, float64, from 2**-33 to 22.9: never zero and never infinite."""
    return -np.log1p((uniform_bits.astype(np.float64) + 0.5) * -(2.0**-32))


def exponential_tensor(uniform_bits: Tensor) -> Tensor:
    """The same variates for int64 bits on any device, float64."""
    return -torch.log1p((uniform_bits.to(torch.float64) + 0.5) * -(2.0**-32))


def _mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _STAFFORD[0]
    x = (x ^ (x >> np.uint64(27))) * _STAFFORD[1]
    return x ^ (x >> np.uint64(31))
