"""Torch tensors as a checkpoint in memory, as format plugins see one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hundredfold.plugin import StoredTensor

ENCODINGS = {
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def stored(tensors: Mapping[str, Tensor]) -> dict[str, StoredTensor]:
    """Each tensor's record, by its name."""
    return {name: _record(name, tensor.contiguous()) for name, tensor in tensors.items()}


def _record(name: str, tensor: Tensor) -> StoredTensor:
    raw = np.frombuffer(tensor.reshape(-1).view(torch.uint8).numpy().tobytes(), dtype=np.uint8)
    return StoredTensor(name, ENCODINGS[tensor.dtype], tuple(tensor.shape), raw)
