"""Reads the header of a GGUF file: key/values and tensor positions, never a tensor.

The gguf library's reader makes one numpy view per string, 6 s for a 49k vocabulary; this one takes 0.1 s, and
checks every count, length and offset against the file, because checkpoints come from strangers.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from hundredfold.models.errors import CheckpointError

MAX_HEADER_BYTES = 512 * 1024 * 1024
MAX_KEYS = 65_536
MAX_TENSORS = 262_144
MAX_NAME_BYTES = 1024
MAX_STRINGS = 4_000_000
MAX_DIMENSIONS = 4
VERSIONS = (2, 3)

_CHUNK = 1024 * 1024
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}

Numbers: TypeAlias = npt.NDArray[np.generic]
GgufValue: TypeAlias = "int | float | bool | str | list[str] | Numbers"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies.

    Attributes:
        name: Its name.
        type_id: GGML type number.
        type_name: GGML type name, such as Q4_1.
        shape: Row-major, as in torch: a projection is (out_features, in_features).
        offset: First byte, from the start of the file.
        nbytes: Its size.
    """

    name: str
    type_id: int
    type_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """The header of one GGUF file.

    The typed accessors return None for a missing key and raise CheckpointError for a value of another type.

    Attributes:
        path: The file.
        version: Format version, 2 or 3.
        values: Every key's value: numbers, strings, lists of strings, or numpy arrays for lists of numbers.
        tensors: Every tensor by name, in file order.
        data_start: First byte of the tensor data.
        digest: sha256 of the header, hexadecimal.
    """

    path: Path
    version: int
    values: Mapping[str, GgufValue]
    tensors: Mapping[str, GgufTensor]
    data_start: int
    digest: str

    def integer(self, key: str) -> int | None:
        """The whole number at ``key``."""
        value = self.values.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._mistyped(key, "a whole number")

    def number(self, key: str) -> float | None:
        """The number at ``key``."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        raise self._mistyped(key, "a number")

    def boolean(self, key: str) -> bool | None:
        """The truth value at ``key``."""
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._mistyped(key, "a truth value")

    def string(self, key: str) -> str | None:
        """The string at ``key``."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._mistyped(key, "a string")

    def strings(self, key: str) -> list[str] | None:
        """The list of strings at ``key``."""
        value = self.values.get(key)
        if value is None or isinstance(value, list):
            return value
        raise self._mistyped(key, "a list of strings")

    def numbers(self, key: str) -> Numbers | None:
        """The list of numbers at ``key``, one-dimensional."""
        value = self.values.get(key)
        if value is None or isinstance(value, np.ndarray):
            return value
        raise self._mistyped(key, "a list of numbers")

    def missing(self, key: str) -> CheckpointError:
        """The error to raise when ``key`` is needed and not there."""
        return CheckpointError(self.path, "is missing", key)

    def _mistyped(self, key: str, wanted: str) -> CheckpointError:
        return CheckpointError(self.path, f"is {type(self.values[key]).__name__}, not {wanted}", key)


def gguf_metadata(path: Path) -> GgufMetadata:
    """Read and check the header of a GGUF file.

    Raises:
        CheckpointError: The file is no sound GGUF file; names the key and the limit.
        OSError: The file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        cursor = _Cursor(path, file, size)
        magic = cursor.take(4, "magic")
        if magic != b"GGUF":
            raise CheckpointError(path, f"is no GGUF file: it begins with {magic!r}, not b'GGUF'")
        version = cursor.u32("version")
        if version not in VERSIONS:
            hint = " (big-endian files are not read)" if version & 0xFFFF == 0 else ""
            raise CheckpointError(path, f"GGUF version {version} is not supported, only 2 and 3 are{hint}")
        num_tensors = cursor.count("tensors", MAX_TENSORS, 24)
        num_keys = cursor.count("keys", MAX_KEYS, 13)
        values = _read_values(cursor, num_keys)
        alignment = _alignment(path, values)
        raw = [_read_tensor(cursor) for _ in range(num_tensors)]
        data_start = -(-cursor.position // alignment) * alignment
        digest = hashlib.sha256(cursor.consumed()).hexdigest()
    tensors = _place(path, raw, data_start, alignment, size)
    return GgufMetadata(path, version, values, tensors, data_start, digest)


class _Cursor:
    """Takes values off the file in order; reads no further ahead than a chunk, and never past a limit."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.position = 0
        self.strings = 0
        self._file = file
        self._size = size
        self._buffer = bytearray()

    def reserve(self, count: int, key: str) -> None:
        """Make sure that ``count`` more bytes are in the buffer."""
        end = self.position + count
        if end <= len(self._buffer):
            return
        if end > self._size:
            raise CheckpointError(
                self.path, f"needs {count} bytes at {self.position}, past the file's end at {self._size}", key
            )
        if end > MAX_HEADER_BYTES:
            raise CheckpointError(self.path, f"makes the header larger than {MAX_HEADER_BYTES} bytes", key)
        self._buffer += self._file.read(max(end - len(self._buffer), _CHUNK))
        if end > len(self._buffer):
            raise CheckpointError(self.path, "became shorter while it was read", key)

    def take(self, count: int, key: str) -> bytes:
        self.reserve(count, key)
        start, self.position = self.position, self.position + count
        return bytes(self._buffer[start : self.position])

    def u32(self, key: str) -> int:
        return int.from_bytes(self.take(4, key), "little")

    def u64(self, key: str) -> int:
        return int.from_bytes(self.take(8, key), "little")

    def count(self, key: str, limit: int, item_bytes: int) -> int:
        """A count of items of at least ``item_bytes`` each, which must fit the file and the limit."""
        value = self.u64(key)
        room = (self._size - self.position) // item_bytes
        if value > limit or value > room:
            raise CheckpointError(
                self.path, f"counts {value}; the limit is {limit}, and the file has room for {room}", key
            )
        return value

    def string(self, key: str, limit: int = MAX_HEADER_BYTES) -> str:
        length = self.u64(key)
        if length > limit:
            raise CheckpointError(self.path, f"has a string of {length} bytes; the limit is {limit}", key)
        try:
            return self.take(length, key).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                self.path, f"holds a string that is no UTF-8 ({error.reason})", key
            ) from None

    def string_list(self, count: int, key: str) -> list[str]:
        self.strings += count
        if self.strings > MAX_STRINGS:
            raise CheckpointError(self.path, f"makes {self.strings} strings; the limit is {MAX_STRINGS}", key)
        # Vocabularies have 100,000s of strings: the usual case, all in the buffer, stays in this loop.
        items: list[str] = []
        unpack, buffer, position = struct.Struct("<Q").unpack_from, self._buffer, self.position
        try:
            for _ in range(count):
                body = position + 8
                if body <= len(buffer):
                    end = body + unpack(buffer, position)[0]
                    if end <= len(buffer):
                        items.append(buffer[body:end].decode())
                        position = end
                        continue
                self.position = position
                items.append(self.string(key))
                position = self.position
        except UnicodeDecodeError as error:
            problem = f"holds a string that is no UTF-8 at index {len(items)} ({error.reason})"
            raise CheckpointError(self.path, problem, key) from None
        self.position = position
        return items

    def consumed(self) -> bytes:
        return bytes(self._buffer[: self.position])


def _read_values(cursor: _Cursor, count: int) -> dict[str, GgufValue]:
    values: dict[str, GgufValue] = {}
    for _ in range(count):
        key = cursor.string("key", MAX_NAME_BYTES)
        if key in values:
            raise CheckpointError(cursor.path, "appears twice", key)
        values[key] = _read_value(cursor, key)
    return values


def _read_value(cursor: _Cursor, key: str) -> GgufValue:
    kind = cursor.u32(key)
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    value = _numbers(cursor, kind, 1, key)[0].item()
    if isinstance(value, (int, float)):
        return value
    raise CheckpointError(cursor.path, f"has a value of unknown kind {type(value).__name__}", key)


def _read_array(cursor: _Cursor, key: str) -> GgufValue:
    kind = cursor.u32(key)
    if kind == _ARRAY:
        raise CheckpointError(cursor.path, "holds a list of lists; only flat lists are read", key)
    if kind == _STRING:
        return cursor.string_list(cursor.count(key, MAX_STRINGS, 8), key)
    item_bytes = np.dtype(_SCALARS[kind]).itemsize if kind in _SCALARS else 1
    return _numbers(cursor, kind, cursor.count(key, MAX_HEADER_BYTES, item_bytes), key)


def _numbers(cursor: _Cursor, kind: int, count: int, key: str) -> Numbers:
    code = _SCALARS.get(kind)
    if code is None:
        raise CheckpointError(cursor.path, f"has unknown value type {kind}; known are 0 to 12", key)
    raw = cursor.take(count * np.dtype(code).itemsize, key)
    if kind == _BOOL and raw.strip(b"\x00\x01"):
        raise CheckpointError(cursor.path, "holds a truth value that is neither 0 nor 1", key)
    return np.frombuffer(raw, dtype=code)


def _alignment(path: Path, values: Mapping[str, GgufValue]) -> int:
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= 65_536 or alignment & (alignment - 1):
        raise CheckpointError(
            path, f"is {alignment!r}, not a power of two from 8 to 65536", "general.alignment"
        )
    return alignment


@dataclass(frozen=True, slots=True)
class _RawTensor:
    """A tensor entry as it is stored: dimensions innermost first, offset from the start of the data."""

    name: str
    dimensions: tuple[int, ...]
    type_id: int
    offset: int


def _read_tensor(cursor: _Cursor) -> _RawTensor:
    name = cursor.string("tensor name", MAX_NAME_BYTES)
    rank = cursor.u32(name)
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise CheckpointError(cursor.path, f"has {rank} dimensions; 1 to {MAX_DIMENSIONS} are allowed", name)
    dimensions = tuple(cursor.u64(name) for _ in range(rank))
    return _RawTensor(name, dimensions, cursor.u32(name), cursor.u64(name))


def _place(
    path: Path, raw: list[_RawTensor], data_start: int, alignment: int, size: int
) -> dict[str, GgufTensor]:
    """Work out every tensor's bytes and check that they lie in the file, aligned and apart."""
    from gguf.constants import (
        GGML_QUANT_SIZES,
        GGMLQuantizationType,
    )  # 0.3 s; not everybody who imports this needs it

    tensors: dict[str, GgufTensor] = {}
    for entry in raw:
        name, elements = entry.name, math.prod(entry.dimensions)
        if name in tensors:
            raise CheckpointError(path, "appears twice", name)
        try:
            kind = GGMLQuantizationType(entry.type_id)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise CheckpointError(path, f"has unknown tensor type {entry.type_id}", name) from None
        if elements == 0 or elements >= 2**63:
            raise CheckpointError(path, f"has shape {entry.dimensions[::-1]} with {elements} elements", name)
        if entry.dimensions[0] % block:
            raise CheckpointError(
                path, f"has rows of {entry.dimensions[0]}, no multiple of {kind.name}'s block {block}", name
            )
        offset, nbytes = data_start + entry.offset, elements // block * block_bytes
        if entry.offset % alignment:
            raise CheckpointError(
                path, f"begins at {entry.offset}, no multiple of the alignment {alignment}", name
            )
        if offset + nbytes > size:
            raise CheckpointError(
                path, f"ends at byte {offset + nbytes}, past the file's end at {size}", name
            )
        tensors[name] = GgufTensor(name, entry.type_id, kind.name, entry.dimensions[::-1], offset, nbytes)
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise CheckpointError(path, f"overlaps '{before.name}' at byte {after.offset}", after.name)
    return tensors
