"""Small checkpoints of every format in memory, and lies about each of their parts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGML_QUANT_SIZES
from safetensors.torch import load_file

from hundredfold.plugin import CheckpointInfo, LayerRequest, StoredTensor
from support.packed_words import awq_tensors, gptq_tensors, round_to_nearest
from support.stored_tensors import stored

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAME = "model.layers.0.mlp.up_proj"
SHAPE = (16, 64)

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -64, 3, 5, 7, 1 << 31, 1 << 63, -(1 << 63), 10**30, 1.5),
    *(float("nan"), float("inf"), "", "x", "4", "x" * 5000, "(" * 500, "(a+)+$", "re:(((", "\0", "../.."),
    *([], {}, [[]], [None], [{}], {"": None}, {"a": 1}, [1 << 62] * 3, {"weights": []}, ["re:["], [[[[[]]]]]),
)
"""What a section may hold in place of what belongs there."""
GONE = object()
"""In place of a value: the key is not there."""
MOST_LIES = 300
ENCODINGS = ("BOOL", "U8", "I8", "I32", "I64", "F8_E4M3", "F16", "BF16", "F32", "F64", "Q4_0", "NONSENSE")
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (16,), (16, 1), (1, 1, 1), (1 << 40, 1 << 40))


@dataclass(frozen=True, slots=True)
class Base:
    """A sound checkpoint of one layer."""

    plugin: str
    info: CheckpointInfo
    tensors: Mapping[str, StoredTensor]
    layer: LayerRequest


def bases() -> dict[str, Base]:
    """One or more for every format of ours, by name."""
    matrix = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    gptq = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": True,
        "checkpoint_format": "gptq",
    }
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
    three = {"quant_method": "gptq", "bits": 3, "group_size": -1, "dynamic": {"+:.*up.*": {"bits": 3}}}
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    codes, scale = (matrix * 9).to(torch.float8_e4m3fn), torch.full((16, 1), 0.1)
    rules = [{"layers": "lm_head", "config": None}, {"layers": "*.mlp.*", "config": gptq}]
    shuffled = gptq_tensors(NAME, round_to_nearest(matrix, 4, 32, act_order=True))
    found = {
        "gptq": _base("gptq", gptq, shuffled),
        "gptq 3 bits": _base("gptq", three, gptq_tensors(NAME, round_to_nearest(matrix, 3, -1))),
        "awq": _base("awq", awq, awq_tensors(NAME, round_to_nearest(matrix, 4, 32))),
        "fp8": _base("fp8", fp8, {f"{NAME}.weight": codes, f"{NAME}.weight_scale": scale}),
        "fp8 blocks": _base(
            "fp8",
            {**fp8, "weight_block_size": [8, 32]},
            {f"{NAME}.weight": codes, f"{NAME}.weight_scale_inv": torch.rand(2, 2)},
        ),
        "mixed": _base("mixed", {"quant_method": "mixed", "rules": rules}, shuffled),
    }
    for kind in ("nf4-double", "fp4", "int8"):
        section = json.loads((FIXTURES / "bitsandbytes" / f"{kind}.json").read_text())["quantization_config"]
        values = load_file(FIXTURES / "bitsandbytes" / f"{kind}.safetensors")
        found[f"bitsandbytes {kind}"] = _base("bitsandbytes", section, _of_layer(values), (52, 40))
    for kind in ("w4a16_asym_ordered", "w8a8_static", "fp8_block", "nvfp4a16"):
        directory = FIXTURES / "compressed_tensors" / kind
        section = json.loads((directory / "config.json").read_text())["quantization_config"]
        own = _of_layer(load_file(directory / "model.safetensors"))
        found[f"compressed-tensors {kind}"] = _base("compressed-tensors", section, own, (128, 64))
    for kind in ("Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"):
        found[f"gguf {kind}"] = _gguf(kind)
    return found


def lies_in_section(base: Base) -> Iterator[tuple[str, CheckpointInfo]]:
    """The section with each of its values replaced by one of ``VALUES``, or gone; long ones are sampled."""
    section = base.info.quantization_config or {}
    places = [(path, value) for path in _paths(section) for value in (*VALUES, GONE)]
    for path, value in random.Random(0).sample(places, min(MOST_LIES, len(places))):
        where = ".".join(map(str, path))
        if value is not GONE:
            section_with = _changed(section, path, lambda _, value=value: value)
        elif isinstance(path[-1], str):
            section_with = _without(section, path)
        else:
            continue
        yield f"{where} = {str(value)[:40]!r}", replace(base.info, quantization_config=section_with)


def lies_in_tensors(base: Base) -> Iterator[tuple[str, dict[str, StoredTensor]]]:
    """Each tensor gone, of another type or shape, cut, too long, or full of something else."""
    chance = np.random.default_rng(0)
    for name, tensor in base.tensors.items():
        others = {other: record for other, record in base.tensors.items() if other != name}
        yield f"{name} gone", others
        changes: dict[str, dict[str, Any]] = {
            **{f"encoding {encoding}": {"encoding": encoding} for encoding in ENCODINGS},
            **{f"shape {shape}": {"shape": shape} for shape in SHAPES},
            "shape transposed": {"shape": tensor.shape[::-1]},
            "empty": {"raw": tensor.raw[:0]},
            "cut": {"raw": tensor.raw[: tensor.raw.size // 2]},
            "a byte too long": {"raw": np.append(tensor.raw, np.uint8(0))},
            "ones": {"raw": np.full_like(tensor.raw, 255)},
            "zeros": {"raw": np.zeros_like(tensor.raw)},
            "noise": {"raw": chance.integers(0, 256, tensor.raw.shape, dtype=np.uint8)},
        }
        for said, change in changes.items():
            yield f"{name} {said}", {**others, name: replace(tensor, **change)}


def _base(
    plugin: str,
    section: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    shape: tuple[int, int] = SHAPE,
) -> Base:
    info = CheckpointInfo("safetensors", section)
    return Base(plugin, info, stored(tensors), LayerRequest(NAME, shape))


def _of_layer(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in values.items() if name.startswith(f"{NAME}.")}


def _gguf(kind: str) -> Base:
    columns, nbytes = GGML_QUANT_SIZES[Kind[kind]]
    raw = np.full(4 * 2 * nbytes, 1, dtype=np.uint8)  # a float16 of ones is small and finite
    tensor = StoredTensor(f"{NAME}.weight", kind, (4, 2 * columns), raw)
    return Base(
        "gguf", CheckpointInfo("gguf", None), {tensor.name: tensor}, LayerRequest(NAME, (4, 2 * columns))
    )


def _paths(value: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON value, the outermost left out."""
    if before:
        yield before
    if isinstance(value, Mapping):
        for key in value:
            yield from _paths(value[key], (*before, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from _paths(value[index], (*before, index))


def _changed(value: Any, path: tuple[str | int, ...], change: Any) -> Any:
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = _changed(copy[path[0]], path[1:], change)
    return copy


def _without(value: Any, path: tuple[str | int, ...]) -> Any:
    def drop(owner: Any) -> Any:
        return {key: item for key, item in owner.items() if key != path[-1]}

    return _changed(value, path[:-1], drop)
