"""Reads the header of a safetensors file and the index of a sharded checkpoint, never a tensor.

Format: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hundredfold.models.errors import CheckpointError

MAX_HEADER_BYTES = 100 * 1000 * 1000
MAX_DIMENSIONS = 16
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """Where one tensor lies.

    Attributes:
        name: Its name.
        dtype: Its type as stored, such as BF16.
        shape: Its shape, row-major.
        offset: First byte, from the start of the file.
        nbytes: Its size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The header of one safetensors file.

    Attributes:
        path: The file.
        tensors: Every tensor by name.
        metadata: The file's free-form notes.
        digest: sha256 of the header, hexadecimal.
    """

    path: Path
    tensors: Mapping[str, SafetensorsTensor]
    metadata: Mapping[str, str]
    digest: str


def safetensors_header(path: Path) -> SafetensorsHeader:
    """Read and check the header of a safetensors file.

    Raises:
        CheckpointError: The file is no sound safetensors file; names the tensor and the limit.
        OSError: The file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise CheckpointError(path, f"is no safetensors file: it has {len(prefix)} bytes")
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER_BYTES or length > size - 8:
            problem = (
                f"has a header of {length} bytes; the limit is {MAX_HEADER_BYTES}, and {size - 8} follow"
            )
            raise CheckpointError(path, problem)
        raw = file.read(length)
    header = parse_json_object(path, raw)
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(value, str) for value in notes.values()):
        raise CheckpointError(path, "is not a map of strings", "__metadata__")
    tensors = {name: _read_tensor(path, name, entry, 8 + length) for name, entry in header.items()}
    end = 8 + length
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            problem = f"begins at byte {tensor.offset}, but the tensor before it ends at {end}"
            raise CheckpointError(path, problem, tensor.name)
        end += tensor.nbytes
    if end != size:
        raise CheckpointError(path, f"holds tensors up to byte {end}, but the file has {size} bytes")
    return SafetensorsHeader(path, tensors, notes, hashlib.sha256(prefix + raw).hexdigest())


def shard_files(index: Path) -> dict[str, Path]:
    """Read model.safetensors.index.json: the shard that holds each tensor, by tensor name.

    Raises:
        CheckpointError: The index is damaged, or names a file outside its directory or one that is not there.
    """
    if index.stat().st_size > MAX_HEADER_BYTES:
        raise CheckpointError(index, f"is larger than {MAX_HEADER_BYTES} bytes")
    weight_map = parse_json_object(index, index.read_bytes()).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(index, "is not a map of tensor names to files", "weight_map")
    shards: dict[str, Path] = {}
    known: dict[str, Path] = {}
    for name, file in weight_map.items():
        if (
            not isinstance(file, str)
            or file in {"", ".", ".."}
            or "/" in file
            or "\\" in file
            or "\0" in file
        ):
            raise CheckpointError(index, f"names {file!r}, which is no file of this directory", name)
        if file not in known:
            known[file] = index.parent / file
            if not known[file].is_file():
                raise CheckpointError(index, f"names {file}, which is not there", name)
        shards[name] = known[file]
    return shards


def parse_json_object(path: Path, raw: bytes) -> dict[str, object]:
    """Parse a JSON object, refusing repeated keys at every level."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise CheckpointError(path, "appears twice", twice)
        return entries

    try:
        parsed = json.loads(raw, object_pairs_hook=unique)
    except RecursionError:
        raise CheckpointError(path, "is nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(path, f"holds no valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(path, f"holds a JSON {type(parsed).__name__}, not an object")
    return parsed


def _read_tensor(path: Path, name: str, entry: object, data_start: int) -> SafetensorsTensor:
    if not isinstance(entry, dict):
        raise CheckpointError(path, "is not described by a JSON object", name)
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(path, f"has unknown dtype {dtype!r}", name)
    if (
        not isinstance(shape, list)
        or not all(_is_size(item) for item in shape)
        or len(shape) > MAX_DIMENSIONS
    ):
        raise CheckpointError(
            path, f"has shape {str(shape)[:100]}, not a list of up to {MAX_DIMENSIONS} sizes", name
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(item) for item in offsets):
        raise CheckpointError(path, f"has data_offsets {str(offsets)[:100]}, not a begin and an end", name)
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        raise CheckpointError(
            path, f"spans {end - begin} bytes, but {dtype} {shape} takes {bits / 8:g}", name
        )
    return SafetensorsTensor(name, dtype, tuple(shape), data_start + begin, end - begin)


def _is_size(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**63
