"""Rotary position embedding: frequencies fixed at load, and a table of angles.

The formulas are transformers' ``modeling_rope_utils``, in float32 as there, so that angles agree to the bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hundredfold.plugin import RotaryStyle, Rotation
from hundredfold_worker.model.description import (
    DivisorScaling,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    RotaryDescription,
    YarnScaling,
)
from hundredfold_worker.model.errors import ModelLoadError

MAX_TABLE_BYTES = 1 << 30


def frequencies(rotary: RotaryDescription, max_model_len: int) -> Tensor:
    """Radians per position, float32[dim / 2], scaling included.

    Scalings that depend on a sequence's length take ``max_model_len`` for it: what lies in a cache cannot be
    rotated anew when its sequence grows.
    """
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
        case YarnScaling() as scaling:
            return _yarn(rotary, scaling)
        case DynamicScaling(factor, original):
            stretch = factor * max(max_model_len, original) / original - (factor - 1)
            theta: float = rotary.theta * stretch ** (rotary.dim / (rotary.dim - 2))
            return 1.0 / theta**exponents
        case LongropeScaling() as scaling:
            divisors = scaling.long if max_model_len > scaling.original_max_position else scaling.short
            return 1.0 / (torch.tensor(divisors, dtype=torch.float32) * rotary.theta**exponents)


def amplitude(rotary: RotaryDescription) -> float:
    """What multiplies cosines and sines."""
    scaling = rotary.scaling
    return scaling.attention_factor if isinstance(scaling, (YarnScaling, LongropeScaling)) else 1.0


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    length, low, high = scaling.original_max_position, scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = 2 * math.pi / plain
    stretched = torch.where(wavelength > length / low, plain / scaling.factor, plain)
    share = (length / wavelength - low) / (high - low)
    blended = (1 - share) * stretched / scaling.factor + share * stretched
    between = (wavelength >= length / high) & (wavelength <= length / low)
    return torch.where(between, blended, stretched)


def _yarn(rotary: RotaryDescription, scaling: YarnScaling) -> Tensor:
    """A ramp over the frequencies, between those that turn ``beta_fast`` and ``beta_slow`` times."""
    powers = rotary.theta ** (torch.arange(0, rotary.dim, 2, dtype=torch.float32) / rotary.dim)
    low, high = (
        rotary.dim
        * math.log(scaling.original_max_position / (turns * 2 * math.pi))
        / (2 * math.log(rotary.theta))
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary.dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(rotary.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (scaling.factor * powers) * (1 - kept) + 1.0 / powers * kept


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
        angles = torch.arange(max_model_len, dtype=torch.float32)[:, None] * frequencies(
            rotary, max_model_len
        )
        table = torch.stack((angles.cos(), angles.sin()), dim=-1)
        self._table = table.mul_(amplitude(rotary)).to(device)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    @property
    def dim(self) -> int:
        """Leading columns of a head that rotate."""
        return self._rotary.dim

    @property
    def style(self) -> RotaryStyle:
        """Which columns rotate together."""
        return self._rotary.style

    @property
    def by_position(self) -> Tensor:
        """float32[max_model_len, dim], cosine and sine in turns."""
        return self._table.flatten(1)

    def at(self, positions: Tensor) -> Rotation:
        """The rotation of a step's tokens; ``positions`` int64[T]."""
        return Rotation(self.dim, self.style, self._table.index_select(0, positions))

    def buffer(self, tokens: int) -> Tensor:
        """Room for the angles of so many tokens."""
        return self._table.new_empty((tokens, *self._table.shape[1:]))

    def write(self, positions: Tensor, out: Tensor) -> None:
        """The angles of a step's tokens into a part of a buffer."""
        torch.index_select(self._table, 0, positions, out=out)
