"""The safetensors header and index readers: as the library on sound files, a named error on hostile ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from hundredfold.models import CheckpointError, safetensors_header, shard_files


def packed(header: object, data: int = 0, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + b"\0" * data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def run(content: bytes) -> Path:
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return path

    return run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("st") / "model.safetensors"
    tensors: dict[str, npt.NDArray[np.generic]] = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(4, np.int8),
        "s": np.array(2, np.float16),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def test_reads_what_the_library_wrote(sound: Path) -> None:
    header = safetensors_header(sound)
    assert header.metadata == {"format": "pt"}
    assert set(header.tensors) == {"w", "b", "s"}
    w = header.tensors["w"]
    assert (w.dtype, w.shape, w.nbytes) == ("F32", (2, 3), 24)
    stored = np.frombuffer(sound.read_bytes()[w.offset : w.offset + w.nbytes], np.float32).reshape(w.shape)
    with safe_open(sound, "numpy") as theirs:
        assert (stored == theirs.get_tensor("w")).all()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it has 0 bytes"),
    "header length": (packed({}, length=2**63), "the limit is 100000000"),
    "header past the end": (packed({}, length=3), "and 2 follow"),
    "over 100 MB": (packed({}, length=100_000_001), "the limit is 100000000"),
    "no JSON": (packed(b"{oops"), "no valid JSON"),
    "not UTF-8": (packed(b'{"\xff": 1}'), "no valid JSON"),
    "deep": (packed(b"[" * 200_000), "nested too deeply"),
    "huge number": (packed(b'{"a": ' + b"9" * 5000 + b"}"), "no valid JSON"),
    "list": (packed([]), "JSON list, not an object"),
    "twice": (packed(b'{"w": {}, "w": {}}'), "'w' appears twice"),
    "notes": (packed({"__metadata__": {"a": 1}}), "not a map of strings"),
    "no object": (packed({"w": 3}), "not described"),
    "dtype": (packed({"w": entry(dtype="F99")}, 8), "unknown dtype 'F99'"),
    "dtype type": (packed({"w": entry(dtype=["F32"])}, 8), "unknown dtype"),
    "shape": (packed({"w": entry(shape=[-1, 2])}, 8), "has shape"),
    "shape of truth": (packed({"w": entry(shape=[True, 2])}, 8), "has shape"),
    "shape type": (packed({"w": entry(shape="23")}, 8), "has shape"),
    "offsets": (packed({"w": entry(offsets=[0])}, 8), "not a begin and an end"),
    "negative": (packed({"w": entry(offsets=[-8, 0])}, 8), "not a begin and an end"),
    "product": (packed({"w": entry(shape=[3])}, 8), "spans 8 bytes, but F32 [3] takes 12"),
    "reversed": (packed({"w": entry(offsets=[8, 0])}, 8), "spans -8 bytes"),
    "overflow": (packed({"w": entry(shape=[2**62, 2**62])}, 8), "spans 8 bytes"),
    "half bytes": (packed({"w": entry(dtype="F4", shape=[3], offsets=[0, 1])}, 1), "takes 1.5"),
    "past the end": (packed({"w": entry()}, 4), "file has"),
    "trailing": (packed({"w": entry()}, 9), "file has"),
    "hole": (packed({"w": entry(offsets=[8, 16])}, 16), "but the tensor before it ends"),
    "overlap": (packed({"a": entry(), "b": entry(offsets=[4, 12])}, 12), "but the tensor before it ends"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_named(name: str, write: Write) -> None:
    content, message = HOSTILE[name]
    path = write(content)
    with pytest.raises(CheckpointError) as caught:
        safetensors_header(path)
    assert message in str(caught.value)
    assert caught.value.file == path


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_an_error_or_a_sound_reading(data: st.DataObject, sound: Path, tmp_path: Path) -> None:
    content = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(content) - 1))
        content[where : where + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    try:
        header = safetensors_header(path)
    except CheckpointError:
        return
    end = max((t.offset + t.nbytes for t in header.tensors.values()), default=len(content))
    assert end == len(content)


def index(tmp_path: Path, weight_map: object) -> Path:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def test_shards_by_tensor(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"")
    found = shard_files(index(tmp_path, {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}))
    assert found == {
        "x": tmp_path / "b.safetensors",
        "y": tmp_path / "a.safetensors",
        "z": tmp_path / "b.safetensors",
    }


@pytest.mark.parametrize("bad", ["../a.safetensors", "/etc/passwd", "", "..", "d/a", "a\0", "d\\a", 3, None])
def test_index_that_leaves_its_directory(bad: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'x' names .* no file of this directory"):
        shard_files(index(tmp_path, {"x": bad}))


def test_index_with_a_missing_shard(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'x' names gone\.safetensors, which is not there"):
        shard_files(index(tmp_path, {"x": "gone.safetensors"}))


@pytest.mark.parametrize("bad", [{}, [], None, "x"])
def test_index_without_a_map(bad: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="weight_map"):
        shard_files(index(tmp_path, bad))
