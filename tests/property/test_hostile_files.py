"""Whole checkpoints cut, damaged and mislabelled: each loads, or ends at once in one error with its name."""

from __future__ import annotations

import json
import random
import resource
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

from hundredfold.models.errors import ModelError
from hundredfold_worker.model import ModelLoadError
from support.llama_checkpoints import random_llama, write_gguf
from support.model_rows import load

FIXTURES = Path(__file__).parents[1] / "fixtures" / "bitsandbytes"
MOST_SECONDS = 1.0
"""Of processor time."""
MOST_MESSAGE = 2000
MOST_MEMORY = 300 << 20
UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sound")
    values = load_file(FIXTURES / "nf4-double.safetensors")
    kept = {name: value for name, value in values.items() if not name.startswith("reference.")}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(FIXTURES / "nf4-double.json", directory / "config.json")
    load(directory)
    return directory


@pytest.fixture(scope="module")
def sound_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(random_llama(num_hidden_layers=1), path, lambda name: Kind.Q5_0)
    load(path)
    return path


@pytest.fixture
def directory(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_MEMORY


def refusal(path: Path) -> str:
    """What was said against the checkpoint, empty when it loads. Other errors go through."""
    began = time.process_time()
    try:
        load(path)
    except (ModelError, ModelLoadError) as error:
        said = str(error)
        assert str(path) in said, said
        assert len(said) < MOST_MESSAGE, said
        assert time.process_time() - began < MOST_SECONDS, said
        return said
    return ""


def header_end(path: Path) -> int:
    return 8 + int(struct.unpack("<Q", path.read_bytes()[:8])[0])


@pytest.mark.parametrize("part", [0, 0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_a_file_cut_short(directory: Path, sound_gguf: Path, tmp_path: Path, part: float) -> None:
    weights = directory / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: int(len(whole) * part)])
    assert str(weights) in refusal(directory)
    whole = sound_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * part)])
    assert str(cut) in refusal(cut)


def test_bytes_of_a_safetensors_header_that_changed(directory: Path) -> None:
    """As a bad disk, or somebody who tries: most are refused, none ends in another way."""
    weights = directory / "model.safetensors"
    whole, end = weights.read_bytes(), header_end(weights)
    chance, refused = random.Random(0), 0
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(end)] = chance.choice(b'0123456789",:{}[]-eFIU\0\xff')
        weights.write_bytes(damaged)
        refused += bool(refusal(directory))
    assert refused > 40


def test_bytes_of_a_gguf_header_that_changed(sound_gguf: Path, tmp_path: Path) -> None:
    whole, path = sound_gguf.read_bytes(), tmp_path / "damaged.gguf"
    end = whole.index(b"token_embd.weight") + 400
    chance, refused = random.Random(0), 0
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(end)] = chance.choice((0, 1, 2, 8, 9, 12, 127, 128, 255))
        path.write_bytes(damaged)
        refused += bool(refusal(path))
    assert refused > 20


def retype(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def lie(directory: Path) -> None:
        values = load_file(directory / "model.safetensors")
        values[name] = change(values[name])
        save_file(values, directory / "model.safetensors")

    return lie


def reconfigure(**changes: Any) -> Callable[[Path], None]:
    def lie(directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | changes))

    return lie


def index(content: object) -> Callable[[Path], None]:
    def lie(directory: Path) -> None:
        (directory / "model.safetensors.index.json").write_text(json.dumps(content))

    return lie


LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "packed as another type": (retype(f"{UP}.weight", lambda t: t.float()), UP),
    "packed transposed": (retype(f"{UP}.weight", lambda t: t[:-1].clone()), UP),
    "scales of another type": (retype(f"{UP}.weight.absmax", lambda t: t.short()), "weight.absmax"),
    "more scales": (retype(f"{UP}.weight.absmax", lambda t: torch.cat((t, t))), "weight.absmax"),
    "a norm of integers": (retype("model.norm.weight", lambda t: t.int()), "model.norm.weight"),
    "a norm of another length": (retype("model.norm.weight", lambda t: t[:-1].clone()), "model.norm.weight"),
    "a section that is a list": (reconfigure(quantization_config=[1]), "quantization_config"),
    "a section that is a text": (reconfigure(quantization_config="nf4"), "quantization_config"),
    "a section of nobody's": (reconfigure(quantization_config={"quant_method": "x" * 10**6}), "bitsandbytes"),
    "a section of another's": (
        reconfigure(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 64}),
        "model.layers.0.self_attn.q_proj",
    ),
    "no section": (reconfigure(quantization_config=None), "model.layers.0.self_attn.q_proj"),
    "an index of a list": (index({"weight_map": ["a"]}), "weight_map"),
    "an index of nothing": (index({}), "weight_map"),
    "a shard outside": (index({"weight_map": {f"{UP}.weight": "../outside.safetensors"}}), "no file of this"),
    "a shard by its whole path": (index({"weight_map": {"a": "/etc/hostname"}}), "no file of this directory"),
    "a shard that is not there": (index({"weight_map": {"a": "b.safetensors"}}), "is not there"),
    "a shard without the tensor": (index({"weight_map": {"a": "model.safetensors"}}), "does not hold it"),
    "a huge vocabulary": (reconfigure(vocab_size=1 << 23), "model.embed_tokens"),
    "a huge layer": (reconfigure(intermediate_size=1 << 20), "model.layers.0.mlp"),
    "many layers": (reconfigure(num_hidden_layers=4096), "model.layers.1."),
}


@pytest.mark.parametrize("name", LIES)
def test_a_checkpoint_that_lies(directory: Path, name: str) -> None:
    lie, named = LIES[name]
    lie(directory)
    assert named in refusal(directory)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": 1, "a": 2}', b"9" * 9999]
)
def test_a_configuration_that_is_none(directory: Path, content: bytes) -> None:
    (directory / "config.json").write_bytes(content)
    assert str(directory / "config.json") in refusal(directory)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_is_a_directory(directory: Path, name: str) -> None:
    (directory / name).unlink()
    (directory / name).mkdir()
    assert refusal(directory)
