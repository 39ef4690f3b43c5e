"""Checkpoints of 8-bit floats in every layout, written from the formats' definitions; the same at load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hundredfold.plugin import CheckpointInfo, Float8Weight, LayerRequest
from hundredfold.plugin.dequantize import dequantize
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_quantization, check_quantizer
from hundredfold.plugin.testing.quantization import MemoryTensors
from hundredfold_worker.model import LoadedModel, ModelLoadError
from support.llama_checkpoints import random_llama, reference_logits
from support.model_rows import load, one_prefill
from support.quantized_llama import write_quantized
from support.random_checkpoints import random_model
from support.stored_tensors import stored as all_stored

FIXTURES = Path(__file__).parents[2] / "fixtures" / "fp8"
PLUGIN = Registry("hundredfold.quantization").get("fp8")
IDS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Layout = Mapping[str, Any]

LAYOUTS: dict[str, Layout] = {
    "tensor": {"shape": ()},
    "tensor-of-one": {"shape": (1,)},
    "channel": {"shape": (-1, 1)},
    "channel-flat": {"shape": (-1,)},
    "deepseek": {"block": (64, 64), "name": "weight_scale_inv"},
    "larger-than-the-layer": {"block": (128, 128), "name": "weight_scale_inv"},
    "narrow-blocks": {"block": (1, 128), "name": "weight_scale_inv"},
    "bf16-scales": {"shape": (-1, 1), "scales": torch.bfloat16},
    "e5m2": {"shape": (-1, 1), "type": E5M2, "config": {"fmt": "e5m2"}},
    "static": {"shape": (), "input": True, "config": {"activation_scheme": "static"}},
    "gptqmodel-row": {"shape": (-1,), "name": "weight_scale_inv", "inverse": True},
    "gptqmodel-tensor": {"shape": (), "name": "weight_scale_inv", "inverse": True},
    "gptqmodel-block": {"block": (32, 32), "name": "weight_scale_inv", "inverse": True},
    "excepted": {"shape": (), "config": {"modules_to_not_convert": ["lm_head", "layers.1.mlp"]}},
}


def section(layout: Layout) -> dict[str, Any]:
    """The ``quantization_config`` that a writer of the layout adds."""
    found: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    if "block" in layout:
        found["weight_block_size"] = list(layout["block"])
    if layout.get("inverse"):
        method = "block" if "block" in layout else "row" if layout["shape"] else "tensor"
        found = {
            **found,
            "format": "float8_e4m3fn",
            "weight_scale_method": method,
            "weight_scale_semantics": "inverse",
        }
    return {**found, **layout.get("config", {})}


def pack(layout: Layout, name: str, matrix: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
    """A layer's tensors, and the matrix that they stand for."""
    if any(part in name for part in layout.get("config", {}).get("modules_to_not_convert", [])):
        return None
    kind = layout.get("type", E4M3)
    rows, columns = matrix.shape
    high, wide = layout.get("block") or (rows if layout["shape"] in ((), (1,)) else 1, columns)
    blocks = (-(-rows // high), -(-columns // wide))
    padded = torch.zeros(blocks[0] * high, blocks[1] * wide)
    padded[:rows, :columns] = matrix
    tops = padded.view(blocks[0], high, blocks[1], wide).abs().amax((1, 3))
    scales = (tops / torch.finfo(kind).max).to(layout.get("scales", torch.float32))
    if layout.get("inverse"):
        stored_scales = 1 / scales
        scales = 1 / stored_scales
    else:
        stored_scales = scales
    full = scales.float().repeat_interleave(high, 0).repeat_interleave(wide, 1)[:rows, :columns]
    largest = torch.finfo(kind).max
    codes = (matrix / full).clamp(-largest, largest).to(kind)
    shape = blocks if "block" in layout else layout["shape"]
    made = {
        f"{name}.weight": codes,
        f"{name}.{layout.get('name', 'weight_scale')}": stored_scales.reshape(shape),
    }
    if layout.get("input"):
        made[f"{name}.input_scale"] = torch.tensor(0.02)
    return made, codes.float() * full


def write(directory: Path, layout: Layout) -> Any:
    return write_quantized(
        directory, section(layout), lambda name, matrix: pack(layout, name, matrix.detach())
    )


def said_of_quantization(model: LoadedModel) -> tuple[str, str]:
    return next((s.chosen, s.reason) for s in model.runtime.selections if s.subject == "quantization")


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_layout_is_what_its_formula_says(kind: str, tmp_path: Path) -> None:
    """Matrices to the bit, the suite for strangers, and logits of transformers with the same numbers."""
    layout = LAYOUTS[kind]
    truth = write(tmp_path, layout)
    stored = all_stored(load_file(tmp_path / "model.safetensors"))
    info = CheckpointInfo("safetensors", section(layout))
    method = PLUGIN.bind(info)
    for name, matrix in truth.named_parameters():
        if name.removesuffix(".weight") + ".input_scale" in stored or matrix.ndim == 2:
            layer = LayerRequest(name.removesuffix(".weight"), tuple(matrix.shape))
            weight = method.load(layer, MemoryTensors(stored))
            assert torch.equal(dequantize(weight, torch.float32), matrix), name
    model = load(tmp_path, quantization="fp8")
    assert float((one_prefill(model, IDS) - reference_logits(truth, IDS)).abs().max()) < 1e-3
    assert said_of_quantization(model)[0] == "fp8"
    assert not model.runtime.warnings
    needed = {n: t for n, t in stored.items() if not n.endswith("input_scale")}
    down = LayerRequest("model.layers.0.mlp.down_proj", (96, 160))
    check_quantization(PLUGIN, info, needed, {down: truth.model.layers[0].mlp.down_proj.weight.detach()})


@pytest.mark.parametrize("kind", ["gptqmodel-row", "gptqmodel-tensor-e5m2"])
def test_gptqmodels_own_checkpoints(kind: str, tmp_path: Path) -> None:
    """It divides by its scales, here the inverse is multiplied by: the last bit of a number may differ."""
    truth = load_file(FIXTURES / kind / "reference.safetensors")
    ids = truth["prompt"].tolist()
    model = load(FIXTURES / kind)
    assert float((one_prefill(model, ids) - truth["logits"]).abs().max()) < 1e-3
    assert not model.runtime.warnings
    shutil.copytree(FIXTURES / kind, tmp_path, dirs_exist_ok=True)
    for file in ("config.json", "quantize_config.json"):  # its other word for its kind of scales is enough
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text.replace("weight_scale_semantics", "unknown"))
    again = one_prefill(load(tmp_path), ids)
    assert float((again - truth["logits"]).abs().max()) < 1e-3


def test_what_is_left_aside_is_said(tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS["static"])
    _, reason = said_of_quantization(load(tmp_path))
    assert "meant for static 8-bit float inputs, which stay floats" in reason
    assert "fixed scales of inputs of 15 layers left aside" in reason


def test_scales_of_joined_layers_stay_apart(tmp_path: Path) -> None:
    """Query, key and value are one product; each keeps its own scale, four times as large as the other's."""
    truth = write(tmp_path, LAYOUTS["tensor"])
    values = load_file(tmp_path / "model.safetensors")
    for part, factor in (("q", 1.0), ("k", 2.0), ("v", 4.0)):
        for index in (0, 1):
            name = f"model.layers.{index}.self_attn.{part}_proj"
            values[f"{name}.weight_scale"] *= factor
            with torch.no_grad():
                truth.get_submodule(name).weight *= factor
    save_file(values, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load(tmp_path)
    assert float((one_prefill(model, IDS) - reference_logits(truth, IDS)).abs().max()) < 1e-3


LAYER = "model.layers.1.self_attn.o_proj"
SIZE = (96, 96)


@pytest.mark.parametrize(
    ("layout", "values", "said"),
    [
        ("tensor", {"weight_scale": None}, "neither of"),
        ("tensor", {"weight_scale_inv": torch.tensor(1.0)}, "both of"),
        ("tensor", {"weight": torch.ones(SIZE)}, "is F32, and"),
        ("tensor", {"weight": torch.ones(SIZE, dtype=torch.int8)}, "is I8, expected is F64"),
        ("tensor", {"weight": torch.full(SIZE, torch.nan).to(E4M3)}, "numbers that are not finite"),
        ("e5m2", {"weight": torch.full(SIZE, torch.inf).to(E5M2)}, "numbers that are not finite"),
        ("e5m2", {"weight": torch.ones(SIZE).to(E4M3)}, "is F8_E4M3, the checkpoint states F8_E5M2"),
        ("tensor", {"weight_scale": torch.tensor(torch.inf)}, "numbers that are not finite"),
        ("tensor", {"weight_scale": torch.ones(3)}, "has shape (3,), expected is (96, 1)"),
        ("tensor", {"weight_scale": torch.ones(2, 2)}, "has shape (2, 2), expected is (96, 1)"),
        ("deepseek", {"weight_scale_inv": torch.ones(1, 2)}, "has shape (1, 2), expected is (2, 2)"),
        ("deepseek", {"weight_scale_inv": torch.tensor(1.0)}, "has shape (), expected is (2, 2)"),
        ("gptqmodel-row", {"weight_scale_inv": torch.zeros(96)}, "holds zeros to divide by"),
        ("static", {"input_scale": torch.tensor(-1.0)}, "not finite and above 0"),
        ("tensor", {"weight": torch.ones(96, 80).to(E4M3)}, "has shape (96, 80), expected is (96, 96)"),
    ],
)
def test_tensors_that_lie(
    layout: str, values: Mapping[str, Tensor | None], said: str, tmp_path: Path
) -> None:
    write(tmp_path, LAYOUTS[layout])
    merged: dict[str, Tensor | None] = dict(load_file(tmp_path / "model.safetensors"))
    merged.update({f"{LAYER}.{part}": value for part, value in values.items()})
    kept = {name: value for name, value in merged.items() if value is not None}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path)
    assert f"layer '{LAYER}'" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fmt": "e4m3fnuz"}, "fmt is 'e4m3fnuz', which is not read"),
        ({"format": ["e4m3"]}, "which is not read"),
        ({"weight_block_size": [128]}, "weight_block_size is"),
        ({"weight_block_size": [0, 128]}, "weight_block_size is"),
        ({"weight_block_size": "128x128"}, "weight_block_size is"),
        ({"weight_block_size": [True, 1 << 70]}, "weight_block_size is"),
        ({"weight_scale_semantics": "log"}, "weight_scale_semantics is 'log'"),
        ({"activation_scheme": "sometimes"}, "activation_scheme is 'sometimes'"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'"),
        ({"ignored_layers": [3]}, "ignored_layers is"),
        ({"dynamic": {"+:x": {}}}, "dynamic: rules that differ by layer"),
        ({"modules_to_not_convert": ["layers.1"]}, f"layer '{LAYER.replace('o_proj', 'q_proj')}'"),
    ],
)
def test_configurations_that_lie_or_are_not_read(change: Layout, said: str, tmp_path: Path) -> None:
    write(tmp_path, LAYOUTS["tensor"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"].update(change)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError) as caught:
        load(tmp_path)
    assert said in str(caught.value)


def test_the_quantizer() -> None:
    quantizer = Registry("hundredfold.quantizers").get("fp8")
    assert not check_quantizer(quantizer, tolerance=0.04).refused
    with pytest.raises(ValueError, match="layer 'a': weights are not finite"):
        quantizer.quantize(LayerRequest("a", (2, 4)), torch.full((2, 4), torch.inf))


def test_rows_become_the_nearest_numbers() -> None:
    """None is further from its number than half a step: 1/16 of itself, or half of the smallest step."""
    matrix = (
        torch.randn(24, 50, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 4, 24)[:, None]
    )
    weight = Registry("hundredfold.quantizers").get("fp8").quantize(LayerRequest("a", (24, 50)), matrix)
    assert isinstance(weight, Float8Weight)
    assert weight.scales.shape == (24, 1)
    error = (dequantize(weight, torch.float32) - matrix).abs()
    assert bool((error <= torch.maximum(matrix.abs() / 16, weight.scales * 2**-10) * 1.0001).all())


def test_at_load_over_a_plain_checkpoint_and_over_its_own(tmp_path: Path) -> None:
    """The name is a format's and a quantizer's: the checkpoint decides which is meant."""
    plain, own = tmp_path / "plain", tmp_path / "own"
    random_llama(0).save_pretrained(plain)
    chosen, reason = said_of_quantization(
        load(plain, quantization="fp8", quantization_exclude=("*down_proj",))
    )
    assert chosen == "fp8"
    assert "13 linear layers quantized at load; excepted: model.layers.0.mlp.down_proj" in reason
    write(own, LAYOUTS["channel"])
    chosen, reason = said_of_quantization(load(own, quantization="fp8"))
    assert (chosen, reason.split(";")[0]) == ("fp8", "asked for")


@pytest.mark.parametrize("kind", ["tensor", "channel", "deepseek"])
def test_layers_that_are_joined_on_disk(kind: str, tmp_path: Path) -> None:
    """Phi-3's query, key and value are one tensor: with one scale, with one of each row, with blocks."""
    model = random_model("Phi3")
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        layer = name.removesuffix(".weight")
        quantized = layer.endswith("_proj")
        made = pack(LAYOUTS[kind], layer, parameter.detach()) if quantized else None
        if made is None:
            tensors[name] = parameter.detach().clone()
            continue
        tensors |= made[0]
        with torch.no_grad():
            parameter.copy_(made[1])
    model.save_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": section(LAYOUTS[kind])})
    )
    assert "model.layers.0.self_attn.qkv_proj.weight" in tensors
    assert float((one_prefill(load(tmp_path), IDS) - reference_logits(model, IDS)).abs().max()) < 1e-3
