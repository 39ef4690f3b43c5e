"""Tensors mapped from checkpoint files: safetensors and GGUF alike, once their headers are read."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf.quants
import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from hundredfold.models import CheckpointError
from hundredfold.plugin import StoredTensor

DENSE = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""Encodings that torch has a type for; both containers use these names."""


class MappedFile:
    """One file, mapped read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def bytes_at(self, offset: int, nbytes: int, key: str) -> npt.NDArray[np.uint8]:
        """A read-only view. Raises ``CheckpointError`` when the file has become shorter."""
        if offset + nbytes > len(self._map):
            raise CheckpointError(self.path, f"ends past the file's end at {len(self._map)}", key)
        return np.frombuffer(self._map, dtype=np.uint8, count=nbytes, offset=offset)

    def release(self) -> None:
        """Give the pages read so far back, so that they do not add up beside the loaded weights."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies."""

    file: MappedFile
    encoding: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class MappedTensors:
    """A checkpoint's tensors. It notes which were asked for, so that those nobody uses can be told."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._used: set[str] = set()

    def names(self) -> frozenset[str]:
        """Every tensor name."""
        return frozenset(self._entries)

    def unused(self) -> list[str]:
        """Names never described nor read, sorted."""
        return sorted(self._entries.keys() - self._used)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape, or ``None`` when there is none of that name; does not count as use."""
        entry = self._entries.get(name)
        return None if entry is None else entry.shape

    def describe(self, name: str) -> StoredTensor:
        """One tensor's record. Raises ``KeyError`` with the name when there is none."""
        entry = self._entries[name]
        self._used.add(name)
        raw = entry.file.bytes_at(entry.offset, entry.nbytes, name)
        return StoredTensor(name, entry.encoding, entry.shape, raw)

    def dense(self, name: str) -> Tensor:
        """A copy of one tensor in its stored type, or float32 where the GGUF library has to dequantize it.

        Raises ``KeyError`` with the name when there is none, ``ValueError`` when its type cannot be read.
        """
        stored = self.describe(name)
        kind = DENSE.get(stored.encoding)
        if kind is not None:
            return torch.from_numpy(stored.raw.copy()).view(kind).view(stored.shape)
        try:
            rows = stored.raw.reshape(math.prod(stored.shape[:-1]), -1)
            values = gguf.quants.dequantize(rows, GGMLQuantizationType[stored.encoding])
        except (KeyError, NotImplementedError) as error:
            raise ValueError(f"tensor '{name}' is of type {stored.encoding}, which is not read") from error
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).view(stored.shape)

    def release(self) -> None:
        """Give back the pages of every file."""
        for file in {id(entry.file): entry.file for entry in self._entries.values()}.values():
            file.release()
