"""bitsandbytes checkpoints that the library wrote: its matrices to the bit, logits, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from hundredfold.plugin import (
    ChannelInt8Weight,
    CheckpointInfo,
    Codebook4Weight,
    DenseWeight,
    LayerRequest,
    StoredTensor,
)
from hundredfold.plugin.dequantize import dequantize
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_quantization
from hundredfold.plugin.testing.quantization import MemoryTensors
from hundredfold_worker.model import ModelLoadError
from support.model_rows import load, one_prefill

FIXTURES = Path(__file__).parents[2] / "fixtures" / "bitsandbytes"
KINDS = sorted(path.stem for path in FIXTURES.glob("*.safetensors"))
PLUGIN = Registry("hundredfold.quantization").get("bitsandbytes")
IDS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
ENCODINGS = {torch.uint8: "U8", torch.int8: "I8", torch.float32: "F32", torch.bfloat16: "BF16"}


def config(kind: str) -> dict[str, object]:
    return json.loads((FIXTURES / f"{kind}.json").read_text())  # type: ignore[no-any-return]


def info(kind: str) -> CheckpointInfo:
    return CheckpointInfo("safetensors", config(kind)["quantization_config"])  # type: ignore[arg-type]


def tensors(kind: str) -> tuple[dict[str, StoredTensor], dict[str, Tensor]]:
    """What the checkpoint holds, and the library's own matrices by layer."""
    values = load_file(FIXTURES / f"{kind}.safetensors")
    wanted = {k.removeprefix("reference."): v for k, v in values.items() if k.startswith("reference.")}
    stored = {
        name: as_stored(name, value) for name, value in values.items() if not name.startswith("reference.")
    }
    return stored, wanted


def as_stored(name: str, value: Tensor) -> StoredTensor:
    raw = np.frombuffer(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), dtype=np.uint8)
    return StoredTensor(name, ENCODINGS[value.dtype], tuple(value.shape), raw)


def as_model(kind: str, directory: Path, change: Callable[[dict[str, Tensor]], None] | None = None) -> Path:
    values = load_file(FIXTURES / f"{kind}.safetensors")
    kept = {name: value for name, value in values.items() if not name.startswith("reference.")}
    if change is not None:
        change(kept)
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config(kind)))
    return directory


def test_the_fixtures_are_all_here() -> None:
    assert len(KINDS) == 7


@pytest.mark.parametrize("kind", KINDS)
def test_the_librarys_matrices_to_the_bit(kind: str) -> None:
    stored, wanted = tensors(kind)
    method = PLUGIN.bind(info(kind))
    for name, matrix in wanted.items():
        if name == "logits":
            continue
        layer = LayerRequest(name, tuple(matrix.shape))
        weight = method.load(layer, MemoryTensors(stored))
        got = dequantize(weight, torch.float32)
        if isinstance(weight, Codebook4Weight):
            assert torch.equal(got, matrix), name
        else:
            # The library rounds code * SCB before it multiplies by 1 / 127: at most the last two bits differ.
            assert isinstance(weight, ChannelInt8Weight)
            codes = torch.from_numpy(stored[f"{name}.weight"].raw.view(np.int8).copy()).view(matrix.shape)
            scb = torch.from_numpy(stored[f"{name}.SCB"].raw.view(np.float32).copy())
            assert torch.equal(got, codes.float() * (scb / 127)[:, None])
            torch.testing.assert_close(got, matrix, rtol=3e-7, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_of_transformers(kind: str, tmp_path: Path) -> None:
    model = load(as_model(kind, tmp_path))
    with safe_open(FIXTURES / f"{kind}.safetensors", "pt") as file:
        wanted = file.get_tensor("reference.logits")
    assert float((one_prefill(model, IDS) - wanted).abs().max()) < 1e-3
    chosen = next(s for s in model.runtime.selections if s.subject == "quantization")
    assert chosen.chosen == "bitsandbytes"
    assert not model.runtime.warnings


def test_modules_left_out_are_floats(tmp_path: Path) -> None:
    stored, _ = tensors("int8-skip")
    weight = PLUGIN.bind(info("int8-skip")).load(
        LayerRequest("model.layers.0.mlp.down_proj", (40, 52)), MemoryTensors(stored)
    )
    assert isinstance(weight, DenseWeight)


@pytest.mark.parametrize("kind", KINDS)
def test_the_suite_for_strangers(kind: str) -> None:
    """Foreign checkpoints, missing and cut tensors, wrong shapes."""
    stored, wanted = tensors(kind)
    layers = {
        LayerRequest(name, tuple(matrix.shape)): matrix
        for name, matrix in wanted.items()
        if name != "logits" and "weight_format" not in name
    }
    if "int8" in kind:  # without its weight_format a layer is as old ones are, and is read
        stored = {name: tensor for name, tensor in stored.items() if not name.endswith("weight_format")}
    check_quantization(PLUGIN, info(kind), stored, layers, tolerance=1e-6)


LAYER = "model.layers.0.self_attn.q_proj"
STATE = f"{LAYER}.weight.quant_state.bitsandbytes__nf4"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quant_type": "fp4"}, "says quant_type 'fp4', its name says 'nf4'"),
        ({"blocksize": 0}, "has blocksize 0, expected is a power of two"),
        ({"blocksize": True}, "has blocksize True"),
        ({"blocksize": 1 << 70}, "has blocksize 1180591620717411303424"),
        ({"blocksize": 128}, "weight.absmax' has shape (25,), expected is (13,)"),
        ({"shape": [40, 41]}, "is of a weight of [40, 41], expected is [40, 40]"),
        ({"shape": [-40, -40]}, "has shape [-40, -40], not a list of sizes"),
        ({"shape": None}, "has shape None"),
        ({"dtype": "int4"}, "has dtype 'int4', expected is float16 or bfloat16 or float32"),
        ({"extra": 1}, "has the unknown key 'extra'"),
        ({"nested_offset": None}, "has no nested_offset"),
        ({"nested_offset": float("nan")}, "has nested_offset nan, expected is a finite number"),
        ({"nested_dtype": "float16"}, "has nested_dtype 'float16'"),
    ],
)
def test_records_that_lie(change: dict[str, object], said: str) -> None:
    stored, _ = tensors("nf4-double")
    record = json.loads(stored[STATE].raw.tobytes()) | change
    if change == {"nested_offset": None}:
        del record["nested_offset"]
        said = "has nested_blocksize but no nested_offset"
    raw = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    stored[STATE] = replace(stored[STATE], raw=raw, shape=raw.shape)
    with pytest.raises(ValueError, match=f"layer '{LAYER}': tensor") as caught:
        PLUGIN.bind(info("nf4-double")).load(LayerRequest(LAYER, (40, 40)), MemoryTensors(stored))
    assert said in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{" * 4000, b'{"a":' * 4000, b"\xff\xfe", b"x" * 5000])
def test_records_that_are_none(raw: bytes) -> None:
    stored, _ = tensors("nf4")
    data = np.frombuffer(raw, dtype=np.uint8)
    stored[STATE] = replace(stored[STATE], raw=data, shape=data.shape)
    with pytest.raises(ValueError, match=f"layer '{LAYER}': tensor '{STATE}'"):
        PLUGIN.bind(info("nf4")).load(LayerRequest(LAYER, (40, 40)), MemoryTensors(stored))


def test_a_packed_weight_without_its_record_is_no_garbage(tmp_path: Path) -> None:
    """Every key of the state is needed; which one is missing is said."""
    for part in ("absmax", "quant_map", "quant_state.bitsandbytes__nf4"):
        directory = tmp_path / part
        directory.mkdir()
        as_model("nf4", directory, lambda values, part=part: values.pop(f"{LAYER}.weight.{part}"))  # type: ignore[misc]
        with pytest.raises(ModelLoadError, match=part):
            load(directory)


def test_a_codebook_of_another_type_is_found() -> None:
    stored, _ = tensors("nf4")
    name = f"{LAYER}.weight.quant_map"
    stored[name] = as_stored(name, torch.linspace(-1, 1, 16))
    with pytest.raises(ValueError, match="quant_map' does not hold the values of nf4"):
        PLUGIN.bind(info("nf4")).load(LayerRequest(LAYER, (40, 40)), MemoryTensors(stored))


def test_a_weight_in_tiles_is_refused() -> None:
    stored, _ = tensors("int8")
    name = f"{LAYER}.weight_format"
    stored[name] = as_stored(name, torch.tensor(2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="weight_format' says col_turing; only row is read"):
        PLUGIN.bind(info("int8")).load(LayerRequest(LAYER, (40, 40)), MemoryTensors(stored))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"load_in_4bit": 1}, "load_in_4bit is '1', expected is true or false"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit and load_in_8bit are both set"),
    ],
)
def test_sections_that_lie(section: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PLUGIN.bind(CheckpointInfo("safetensors", {"quant_method": "bitsandbytes", **section}))


def test_old_checkpoints_have_only_flags() -> None:
    assert not PLUGIN.refuses(CheckpointInfo("safetensors", {"load_in_4bit": True, "load_in_8bit": False}))
