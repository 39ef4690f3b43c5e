"""The GGUF header reader: equal to the gguf library on sound files, a named error on hostile ones."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hundredfold.models import CheckpointError, GgufMetadata, gguf_metadata


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dims = b"".join(struct.pack("<Q", d) for d in shape)
    return string(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    keys: list[bytes] = [],  # noqa: B006
    tensors: list[bytes] = [],  # noqa: B006
    data: int = 0,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    num_tensors, num_keys = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join(keys) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + b"\0" * data


Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def run(content: bytes) -> Path:
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        return path

    return run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.u32", 4_000_000_000)
    writer.add_int8("a.i8", -5)
    writer.add_uint64("a.u64", 2**63)
    writer.add_float32("a.f32", 1.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "grüße")
    writer.add_array("a.tokens", ["<s>", "", "Ġthe", "é"])
    writer.add_array("a.scores", [0.5, -1.0])
    writer.add_array("a.types", [1, 2, 3])
    writer.add_tensor("w", np.arange(96, dtype=np.float32).reshape(3, 32))
    writer.add_tensor("q", np.zeros((2, 36), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_reads_what_the_library_wrote(sound: Path) -> None:
    meta = gguf_metadata(sound)
    assert meta.version == 3
    assert meta.string("general.architecture") == "llama"
    assert meta.integer("a.u32") == 4_000_000_000
    assert meta.integer("a.i8") == -5
    assert meta.integer("a.u64") == 2**63
    assert meta.number("a.f32") == 1.5
    assert meta.number("a.f64") == 0.1
    assert meta.boolean("a.bool") is True
    assert meta.string("a.text") == "grüße"
    assert meta.strings("a.tokens") == ["<s>", "", "Ġthe", "é"]
    scores = meta.numbers("a.scores")
    types = meta.numbers("a.types")
    assert scores is not None
    assert types is not None
    assert scores.tolist() == [0.5, -1.0]
    assert types.tolist() == [1, 2, 3]


def test_tensors_lie_where_the_library_says(sound: Path) -> None:
    meta = gguf_metadata(sound)
    reader = gguf.GGUFReader(sound)
    assert [t.name for t in reader.tensors] == list(meta.tensors)
    for theirs in reader.tensors:
        ours = meta.tensors[theirs.name]
        assert ours.offset == theirs.data_offset
        assert ours.nbytes == theirs.n_bytes
        assert ours.shape == tuple(int(d) for d in theirs.shape[::-1])
        assert ours.type_name == theirs.tensor_type.name
    raw = sound.read_bytes()[meta.tensors["w"].offset :][: meta.tensors["w"].nbytes]
    assert np.frombuffer(raw, np.float32).reshape(meta.tensors["w"].shape)[2, 31] == 95


def test_missing_is_none_and_mistyped_is_an_error(sound: Path) -> None:
    meta = gguf_metadata(sound)
    assert meta.integer("no.such") is None
    assert meta.strings("no.such") is None
    with pytest.raises(CheckpointError, match=r"'a\.text' is str, not a whole number"):
        meta.integer("a.text")
    with pytest.raises(CheckpointError, match=r"'a\.bool' is bool, not a whole number"):
        meta.integer("a.bool")
    with pytest.raises(CheckpointError, match="not a list of strings"):
        meta.strings("a.types")
    with pytest.raises(CheckpointError, match="not a list of numbers"):
        meta.numbers("a.tokens")
    assert "'no.such' is missing" in str(meta.missing("no.such"))


def test_large_vocabulary_is_fast(write: Write) -> None:
    words = b"".join(string(f"token{i}") for i in range(150_000))
    path = write(gguf_bytes([key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 150_000) + words)]))
    begin = time.process_time()
    tokens = gguf_metadata(path).strings("tokenizer.ggml.tokens")
    assert time.process_time() - begin < 2
    assert tokens is not None
    assert (tokens[0], tokens[-1], len(tokens)) == ("token0", "token149999", 150_000)


def test_strings_across_read_chunks(write: Write) -> None:
    words = [chr(97 + i % 26) * (i * 37 % 5000) for i in range(2000)]  # 5 MB: several chunks, cut anywhere
    body = struct.pack("<IQ", 8, len(words)) + b"".join(string(w) for w in words)
    assert gguf_metadata(write(gguf_bytes([key("k", 9, body)]))).strings("k") == words


F32, Q4_0 = 0, 2
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "magic"),
    "magic": (b"GGML" + b"\0" * 60, "no GGUF file"),
    "pickle": (b"\x80\x04" + b"\0" * 60, "no GGUF file"),
    "version 1": (gguf_bytes(version=1), "version 1 is not supported"),
    "big-endian": (gguf_bytes(version=3 << 24), "big-endian"),
    "keys": (gguf_bytes(counts=(0, 2**60)), "'keys' counts 1152921504606846976; the limit is 65536"),
    "tensors": (gguf_bytes(counts=(2**60, 0)), "'tensors' counts"),
    "few keys, no room": (gguf_bytes(counts=(0, 60)), "room for 0"),
    "key length": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62) + b"\0" * 50, "the limit is 1024"),
    "string length": (gguf_bytes([key("k", 8, struct.pack("<Q", 2**62))], data=64), "'k' has a string"),
    "string past the end": (gguf_bytes([key("k", 8, struct.pack("<Q", 5000))]), "past the file's end"),
    "value type": (gguf_bytes([key("k", 13, b"\0" * 8)]), "unknown value type 13"),
    "list type": (gguf_bytes([key("k", 9, struct.pack("<IQ", 77, 1))]), "unknown value type 77"),
    "list of lists": (gguf_bytes([key("k", 9, struct.pack("<IQ", 9, 1))]), "list of lists"),
    "list count": (gguf_bytes([key("k", 9, struct.pack("<IQ", 4, 2**50))]), "'k' counts"),
    "string list count": (gguf_bytes([key("k", 9, struct.pack("<IQ", 8, 2**50))]), "'k' counts"),
    "string in a list": (
        gguf_bytes([key("k", 9, struct.pack("<IQQ", 8, 1, 2**40))], data=64),
        "'k' has a string",
    ),
    "twice": (gguf_bytes([key("k", 4, b"\0" * 4), key("k", 4, b"\0" * 4)]), "'k' appears twice"),
    "not UTF-8": (gguf_bytes([key("k", 8, string(b"\xff\xfe"))]), "'k' holds a string that is no UTF-8"),
    "not UTF-8 in a list": (
        gguf_bytes([key("k", 9, struct.pack("<IQ", 8, 2) + string("a") + string(b"\xff"))]),
        "at index 1",
    ),
    "truth": (gguf_bytes([key("k", 7, b"\x02")]), "neither 0 nor 1"),
    "alignment": (gguf_bytes([key("general.alignment", 4, struct.pack("<I", 33))]), "power of two"),
    "alignment type": (gguf_bytes([key("general.alignment", 8, string("32"))]), "power of two"),
    "no dimensions": (gguf_bytes([], [tensor("w", (), F32, 0)], 64), "0 dimensions"),
    "many dimensions": (gguf_bytes([], [tensor("w", (1,) * 5, F32, 0)], 64), "5 dimensions"),
    "no elements": (gguf_bytes([], [tensor("w", (4, 0), F32, 0)], 64), "0 elements"),
    "huge": (gguf_bytes([], [tensor("w", (2**40, 2**40), F32, 0)], 64), "elements"),
    "tensor type": (gguf_bytes([], [tensor("w", (8,), 9999, 0)], 64), "unknown tensor type 9999"),
    "removed tensor type": (gguf_bytes([], [tensor("w", (8,), 4, 0)], 64), "unknown tensor type 4"),
    "rows": (gguf_bytes([], [tensor("w", (33,), Q4_0, 0)], 64), "no multiple of Q4_0's block 32"),
    "unaligned": (gguf_bytes([], [tensor("w", (8,), F32, 4)], 64), "no multiple of the alignment 32"),
    "past the end": (gguf_bytes([], [tensor("w", (16,), F32, 32)], 64), "past the file's end"),
    "far past the end": (gguf_bytes([], [tensor("w", (16,), F32, 2**64 - 32)], 64), "past the file's end"),
    "overlap": (
        gguf_bytes([], [tensor("a", (16,), F32, 0), tensor("b", (8,), F32, 32)], 64),
        "'b' overlaps 'a'",
    ),
    "tensor twice": (
        gguf_bytes([], [tensor("a", (8,), F32, 0), tensor("a", (8,), F32, 32)], 64),
        "appears twice",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_named(name: str, write: Write) -> None:
    content, message = HOSTILE[name]
    path = write(content)
    with pytest.raises(CheckpointError) as caught:
        gguf_metadata(path)
    assert message in str(caught.value)
    assert caught.value.file == path


def test_control_characters_of_a_name_are_escaped(write: Write) -> None:
    path = write(gguf_bytes([key("\x1b[2Jk", 13, b"\0" * 8)]))
    with pytest.raises(CheckpointError) as caught:
        gguf_metadata(path)
    assert "\x1b" not in str(caught.value)


@settings(max_examples=400, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_an_error_or_a_sound_reading(data: st.DataObject, sound: Path, tmp_path: Path) -> None:
    content = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, min(len(content), 900) - 1))
        content[where : where + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    try:
        meta = gguf_metadata(path)
    except CheckpointError:
        return
    assert_in_file(meta, path.stat().st_size)


@settings(max_examples=200, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=300))
def test_any_bytes_after_the_magic(tail: bytes, tmp_path: Path) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + tail)
    try:
        meta = gguf_metadata(path)
    except CheckpointError:
        return
    assert_in_file(meta, path.stat().st_size)


def assert_in_file(meta: GgufMetadata, size: int) -> None:
    end = meta.data_start
    for entry in sorted(meta.tensors.values(), key=lambda t: t.offset):
        assert entry.offset >= end
        end = entry.offset + entry.nbytes
        assert end <= size
