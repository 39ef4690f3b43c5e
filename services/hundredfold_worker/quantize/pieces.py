"""Safetensors written piece by piece: one file a layer while quantizing, joined at the end without reading
more than a buffer at a time."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hundredfold.models import safetensors_header

NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.uint8: "U8",
}

SHARD_BYTES = 4 << 30
"""Tensor bytes after which a new file begins."""

_BUFFER = 16 << 20
_METADATA = {"format": "pt"}


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tensor in a piece."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def write_piece(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file that is there whole or not at all."""
    header: dict[str, Any] = {"__metadata__": _METADATA}
    first = 0
    for name, tensor in tensors.items():
        header[name] = _entry(NAMES[tensor.dtype], list(tensor.shape), first, tensor.nbytes)
        first += tensor.nbytes
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(_header_bytes(header))
        for tensor in tensors.values():
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def join_pieces(pieces: Sequence[Path], directory: Path, shard_bytes: int = SHARD_BYTES) -> list[Path]:
    """Write the tensors of all pieces as ``model.safetensors``, or as shards with an index."""
    shards = list(_shards(pieces, shard_bytes))
    written, weight_map, total = [], {}, 0
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _copy(shard, directory / name)
        written.append(directory / name)
        weight_map.update({tensor.name: name for tensor in shard})
        total += sum(tensor.nbytes for tensor in shard)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return written


def _shards(pieces: Sequence[Path], shard_bytes: int) -> Iterator[list[_Placed]]:
    shard: list[_Placed] = []
    held = 0
    for path in pieces:
        for name, tensor in safetensors_header(path).tensors.items():
            if shard and held + tensor.nbytes > shard_bytes:
                yield shard
                shard, held = [], 0
            shard.append(_Placed(path, name, tensor.dtype, tensor.shape, tensor.offset, tensor.nbytes))
            held += tensor.nbytes
    yield shard


def _copy(tensors: Sequence[_Placed], path: Path) -> None:
    header: dict[str, Any] = {"__metadata__": _METADATA}
    first = 0
    for tensor in tensors:
        header[tensor.name] = _entry(tensor.dtype, list(tensor.shape), first, tensor.nbytes)
        first += tensor.nbytes
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as out:
        out.write(_header_bytes(header))
        for tensor in tensors:
            with tensor.path.open("rb") as piece:
                piece.seek(tensor.offset)
                left = tensor.nbytes
                while left:
                    buffer = piece.read(min(left, _BUFFER))
                    if not buffer:
                        raise OSError(f"{tensor.path} ends inside of tensor '{tensor.name}'")
                    out.write(buffer)
                    left -= len(buffer)
        out.flush()
        os.fsync(out.fileno())  # the pieces are deleted after it
    unfinished.replace(path)


def _entry(dtype: str, shape: list[int], first: int, nbytes: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, first + nbytes]}


def _header_bytes(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
