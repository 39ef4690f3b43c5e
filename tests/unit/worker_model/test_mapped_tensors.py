"""Tensors mapped from files: every stored type, copies that outlive the file, and what was never read."""

from __future__ import annotations

import math
from pathlib import Path

import gguf.quants
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from hundredfold_worker.model.checkpoint.tensors import DENSE, Entry, MappedFile, MappedTensors

READABLE = sorted(kind.name for kind in gguf.quants._type_traits)
PLAIN = {"F32", "F16", "BF16"}


def mapped(path: Path, **tensors: tuple[str, tuple[int, ...], bytes]) -> MappedTensors:
    """A file of tensors: encoding, shape and bytes by name."""
    path.write_bytes(b"".join(raw for _, _, raw in tensors.values()))
    file, offset, entries = MappedFile(path), 0, {}
    for name, (encoding, shape, raw) in tensors.items():
        entries[name] = Entry(file, encoding, shape, offset, len(raw))
        offset += len(raw)
    return MappedTensors(entries)


@pytest.mark.parametrize("name", READABLE)
def test_gguf_types_become_the_librarys_numbers(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    block, block_bytes = GGML_QUANT_SIZES[kind]
    columns, rows = math.lcm(block, 64), 3
    raw = np.random.default_rng(0).integers(0, 256, rows * columns // block * block_bytes, dtype=np.uint8)
    tensors = mapped(tmp_path / "file", w=(name, (rows, columns), raw.tobytes()))
    with np.errstate(all="ignore"):  # random scales may be anything
        wanted = gguf.quants.dequantize(raw.reshape(rows, -1), kind)
        got = tensors.dense("w")
    assert got.shape == (rows, columns)
    assert got.dtype == (DENSE[name] if name in PLAIN else torch.float32)
    assert torch.equal(got.float().nan_to_num(), torch.from_numpy(np.ascontiguousarray(wanted)).nan_to_num())


@pytest.mark.parametrize("name", ["Q8_K", "Q8_1", "F4", "nonsense"])
def test_other_types_are_refused_by_name(tmp_path: Path, name: str) -> None:
    tensors = mapped(tmp_path / "file", w=(name, (1, 256), bytes(512)))
    with pytest.raises(ValueError, match=f"tensor 'w' is of type {name}, which is not read"):
        tensors.dense("w")


@pytest.mark.parametrize("encoding", DENSE)
def test_types_that_torch_has(tmp_path: Path, encoding: str) -> None:
    values = torch.tensor([[1, 0, 1], [0, 1, 1]]).to(DENSE[encoding])
    raw = values.contiguous().view(torch.uint8).numpy().tobytes()
    # an odd place: nothing in a file is aligned for sure
    tensors = mapped(tmp_path / "file", pad=("U8", (1,), b"x"), w=(encoding, (2, 3), raw))
    got = tensors.dense("w")
    assert got.dtype == values.dtype
    assert torch.equal(got.float(), values.float())
    tensors.release()
    assert torch.equal(got.float(), values.float())


def test_raw_bytes_cannot_be_changed(tmp_path: Path) -> None:
    raw = mapped(tmp_path / "file", w=("U8", (4,), b"abcd")).describe("w").raw
    assert raw.tobytes() == b"abcd"
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 0


def test_what_nobody_asked_for_is_known(tmp_path: Path) -> None:
    tensors = mapped(tmp_path / "file", a=("U8", (1,), b"a"), b=("U8", (1,), b"b"), c=("U8", (1,), b"c"))
    assert tensors.names() == {"a", "b", "c"}
    assert tensors.shape("b") == (1,)
    assert tensors.shape("d") is None
    tensors.describe("a")
    tensors.dense("c")
    assert tensors.unused() == ["b"]
    with pytest.raises(KeyError, match="d"):
        tensors.describe("d")
