"""Rotary position embedding: frequencies fixed at load, and a table of angles.

The formulas are transformers' ``modeling_rope_utils``, in float32 as there, so that angles agree to the bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hundredfold.plugin import Rotation
from hundredfold_worker.model.description import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    RotaryDescription,
)
from hundredfold_worker.model.errors import ModelLoadError

MAX_TABLE_BYTES = 1 << 30


def frequencies(rotary: RotaryDescription) -> Tensor:
    """Radians per position, float32[dim / 2], scaling included."""
    exponents = torch.arange(0, rotary.dim, 2, dtype=torch.float32) / rotary.dim
    plain = 1.0 / (rotary.theta**exponents)
    match rotary.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case DivisorScaling(divisors):
            return plain / torch.tensor(divisors, dtype=torch.float32)
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    length, low, high = scaling.original_max_position, scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = 2 * math.pi / plain
    stretched = torch.where(wavelength > length / low, plain / scaling.factor, plain)
    share = (length / wavelength - low) / (high - low)
    blended = (1 - share) * stretched / scaling.factor + share * stretched
    between = (wavelength >= length / high) & (wavelength <= length / low)
    return torch.where(between, blended, stretched)


class RotaryTable:
    """Cosines and sines of every position below ``max_model_len``."""

    def __init__(self, rotary: RotaryDescription, max_model_len: int, device: torch.device) -> None:
        nbytes = max_model_len * rotary.dim * 4
        if nbytes > MAX_TABLE_BYTES:
            raise ModelLoadError(
                f"max_model_len {max_model_len} needs {nbytes} bytes of rotary tables, the limit is "
                f"{MAX_TABLE_BYTES}; set max_model_len to at most {MAX_TABLE_BYTES // (rotary.dim * 4)}"
            )
        self._rotary = rotary
        angles = torch.arange(max_model_len, dtype=torch.float32)[:, None] * frequencies(rotary)
        self._table = torch.stack((angles.cos(), angles.sin()), dim=-1).to(device)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    def at(self, positions: Tensor) -> Rotation:
        """The rotation of a step's tokens; ``positions`` int64[T]."""
        return Rotation(self._rotary.dim, self._rotary.style, self._table.index_select(0, positions))
