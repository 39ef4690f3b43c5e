"""Finding a model on disk: every kind that works, every failure in its own words, and never the network."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hundredfold.models import CATALOG, CheckpointError, ModelError, ModelNotFound, fingerprint, resolve
from hundredfold.models.catalog import CatalogModel, WheelMember


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("resolve went to the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny-llama"
    directory.mkdir()
    save_file({"w": np.zeros(4, np.float32)}, directory / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (directory / name).write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ messages }}")
    return directory


def test_directory(checkpoint: Path) -> None:
    files = resolve(str(checkpoint))
    assert files.name == "tiny-llama"
    assert files.container == "safetensors"
    assert files.path == files.root == checkpoint
    assert files.weights == (checkpoint / "model.safetensors",)
    assert files.config == checkpoint / "config.json"
    assert files.tokenizer == checkpoint / "tokenizer.json"
    assert files.tokenizer_config == checkpoint / "tokenizer_config.json"
    assert files.generation_config == checkpoint / "generation_config.json"
    assert files.chat_template == checkpoint / "chat_template.jinja"
    assert files.index is None


def test_relative_directory_has_its_real_name(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint)
    assert resolve(".").name == "tiny-llama"


def test_sharded(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    shards = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    for shard in shards:
        save_file({shard: np.zeros(1, np.float32)}, checkpoint / shard)
    save_file({"other": np.zeros(1, np.float32)}, checkpoint / "consolidated.safetensors")
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}))
    files = resolve(str(checkpoint))
    assert files.weights == (checkpoint / shards[1], checkpoint / shards[0])
    assert files.index == index


def test_sharded_with_an_index_of_another_name(checkpoint: Path) -> None:
    """AutoGPTQ calls both after bits and group size; a whole file of the usual name wins."""
    shards = [f"gptq_model-4bit-64g-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for shard in shards:
        save_file({shard: np.zeros(1, np.float32)}, checkpoint / shard)
    index = checkpoint / "gptq_model-4bit-64g.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}))
    assert resolve(str(checkpoint)).index is None
    (checkpoint / "model.safetensors").unlink()
    assert resolve(str(checkpoint)).index == index


def test_gguf_file_and_directory(tmp_path: Path) -> None:
    path = tmp_path / "my.Q4_0.gguf"
    path.write_bytes(b"GGUF")
    by_file, by_directory = resolve(str(path)), resolve(str(tmp_path))
    assert (by_file.name, by_file.container, by_file.path) == ("my.Q4_0", "gguf", path)
    assert (by_directory.name, by_directory.container, by_directory.path) == (tmp_path.name, "gguf", path)


def test_safetensors_win_over_gguf(checkpoint: Path) -> None:
    (checkpoint / "also.gguf").write_bytes(b"GGUF")
    assert resolve(str(checkpoint)).container == "safetensors"


@pytest.fixture
def small_entry(monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    entry = CatalogModel("small", "s.gguf", (WheelMember("p==1", "p/s.gguf"),), 4, "0", "MIT", "small")
    monkeypatch.setattr("hundredfold.models.lookup.CATALOG", {**CATALOG, "small": entry})
    return entry


def test_catalog_name(small_entry: CatalogModel, tmp_path: Path) -> None:
    small_entry.path(tmp_path).parent.mkdir()
    small_entry.path(tmp_path).write_bytes(b"GGUF")
    files = resolve("small", cache=tmp_path)
    assert (files.name, files.path) == ("small", tmp_path / "small" / "s.gguf")


def test_catalog_name_not_pulled(small_entry: CatalogModel, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="hundredfold models pull small"):
        resolve("small", cache=tmp_path)


def test_catalog_file_cut_short(small_entry: CatalogModel, tmp_path: Path) -> None:
    small_entry.path(tmp_path).parent.mkdir()
    small_entry.path(tmp_path).write_bytes(b"GG")
    with pytest.raises(CheckpointError, match="has 2 bytes, not 4"):
        resolve("small", cache=tmp_path)


def test_hub_id_in_the_hubs_cache(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789012345678901234567890123456789"
    repo = tmp_path / "hub" / "models--some--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots").mkdir()
    checkpoint.rename(repo / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    files = resolve("some/tiny")
    assert files.name == "some/tiny"
    assert files.weights[0].is_file()
    assert resolve(f"some/tiny@{commit}").root == files.root
    with pytest.raises(ModelNotFound, match="hundredfold models pull some/other"):
        resolve("some/other")


def test_not_found_messages(tmp_path: Path) -> None:
    messages = {}
    for name in (
        "smolm2-135",
        "nothing-like-it",
        "./gone",
        "/no/such/dir",
        "gone.gguf",
        "a/b/c",
        "https://x.y/z",
    ):
        with pytest.raises(ModelNotFound) as caught:
            resolve(name)
        messages[name] = str(caught.value)
    assert (
        "did you mean 'smollm2-135m'? Fetch it with `hundredfold models pull smollm2-135m`"
        in messages["smolm2-135"]
    )
    assert "known names: smollm2-135m" in messages["nothing-like-it"]
    for name in ("./gone", "/no/such/dir", "gone.gguf", "a/b/c"):
        assert messages[name] == f"model path {name!r} does not exist"
    assert "is a URL" in messages["https://x.y/z"]


@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 5000])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no name of a model"):
        resolve(name)


def test_unusable_directories(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve(str(checkpoint))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"no \.safetensors and no \.gguf"):
        resolve(str(empty))
    (empty / "pytorch_model.bin").write_bytes(b"\x80\x04")
    (empty / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"pickles only \(pytorch_model\.bin\).*convert"):
        resolve(str(empty))


def test_unusable_files(tmp_path: Path) -> None:
    for name, message in {
        "pytorch_model.bin": "is a pickle",
        "model.safetensors": "named by its directory",
        "m-00001-of-00003.gguf": "one piece of a split GGUF",
    }.items():
        path = tmp_path / name
        path.write_bytes(b"GGUF")
        with pytest.raises(ModelError, match=message):
            resolve(str(path))


def test_several_ggufs(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"2 weight files.*a\.gguf, b\.gguf"):
        resolve(str(tmp_path))


def test_fingerprint_sees_what_defines_the_model(checkpoint: Path, tmp_path: Path) -> None:
    def current() -> str:
        return fingerprint(resolve(str(checkpoint)))

    first = current()
    assert first == current()
    moved = tmp_path / "elsewhere"
    checkpoint.rename(moved)
    assert fingerprint(resolve(str(moved))) == first
    moved.rename(checkpoint)
    seen = {first}
    (checkpoint / "generation_config.json").write_text('{"temperature": 0.5}')
    assert current() == first
    (checkpoint / "config.json").write_text('{"a": 1}')
    seen.add(current())
    (checkpoint / "tokenizer.json").write_text('{"a": 1}')
    seen.add(current())
    save_file({"w": np.zeros(8, np.float32)}, checkpoint / "model.safetensors")
    seen.add(current())
    assert len(seen) == 4


def test_fingerprint_of_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError):
        fingerprint(resolve(str(path)))
    path.unlink()
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    files = resolve(str(path))
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        fingerprint(files)
