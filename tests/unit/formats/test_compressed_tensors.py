"""Checkpoints that llm-compressor wrote: its library's matrices to the bit, logits, its own run of W8A8."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hundredfold.plugin import (
    ChannelInt8Weight,
    CheckpointInfo,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    LayerRequest,
)
from hundredfold.plugin.dequantize import dequantize, fold_transform
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_quantization
from hundredfold.plugin.testing.quantization import MemoryTensors
from hundredfold_worker.model import LoadedModel, ModelLoadError
from support.model_rows import load, one_prefill
from support.stored_tensors import stored as all_stored

FIXTURES = Path(__file__).parents[2] / "fixtures" / "compressed_tensors"
KINDS = sorted(path.name for path in FIXTURES.iterdir())
PLUGIN = Registry("hundredfold.quantization").get("compressed-tensors")
BY_INTEGERS = [kind for kind in KINDS if kind.startswith("w8a8")]
CANONICAL = {
    "fp8": Float8Weight,
    "fp8_block": Float8Weight,
    "fp8_dynamic_kv": Float8Weight,
    "mxfp4a16": DenseWeight,
    "nvfp4a16": DenseWeight,
    "w3a16": GroupedIntWeight,
    "w4a16": GroupedIntWeight,
    "w4a16_asym_ordered": GroupedIntWeight,
    "w8a16": ChannelInt8Weight,
    "w8a16_group": GroupedIntWeight,
    "w8a8": ChannelInt8Weight,
    "w8a8_asym": GroupedIntWeight,
    "w8a8_smooth": ChannelInt8Weight,
    "w8a8_static": ChannelInt8Weight,
}
"""What the layers of a fixture become; ``mixed`` has two kinds."""
OPTIONAL = ("input_scale", "input_zero_point", "k_scale", "v_scale")
"""Last parts of the names of tensors that may be missing."""


def info(kind: str) -> CheckpointInfo:
    config = json.loads((FIXTURES / kind / "config.json").read_text())
    return CheckpointInfo("safetensors", config["quantization_config"])


def tensors(kind: str) -> dict[str, Tensor]:
    return load_file(FIXTURES / kind / "model.safetensors")


def reference(kind: str) -> tuple[list[int], dict[str, str], dict[str, Tensor]]:
    """Token ids, the hash of each layer's matrix, and logits."""
    stated = json.loads((FIXTURES / kind / "reference.json").read_text())
    return stated["ids"], stated["sha256"], load_file(FIXTURES / kind / "reference.safetensors")


def shape_of(layer: str) -> tuple[int, int]:
    sizes = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
    return {**sizes, "down_proj": (64, 128)}.get(layer.rsplit(".", 1)[-1], (128, 64))


def said_of_quantization(model: LoadedModel) -> str:
    return next(s.reason for s in model.runtime.selections if s.subject == "quantization")


def test_the_fixtures_are_all_here() -> None:
    assert {*CANONICAL, "mixed"} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_librarys_matrices_to_the_bit(kind: str) -> None:
    _, hashes, _ = reference(kind)
    method, source = PLUGIN.bind(info(kind)), MemoryTensors(all_stored(tensors(kind)))
    assert len(hashes) == 14
    for name, wanted in hashes.items():
        weight = method.load(LayerRequest(name, shape_of(name)), source)
        matrix = fold_transform(dequantize(weight, torch.float32), weight.transform)
        assert hashlib.sha256(matrix.contiguous().numpy().tobytes()).hexdigest() == wanted, name
        assert isinstance(weight, CANONICAL.get(kind, ChannelInt8Weight | Float8Weight)), name


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_of_transformers(kind: str) -> None:
    ids, _, logits = reference(kind)
    model = load(FIXTURES / kind, activations="float")
    assert float((one_prefill(model, ids) - logits["dense"]).abs().max()) < 1e-3
    chosen = next(s for s in model.runtime.selections if s.subject == "quantization")
    assert chosen.chosen == "compressed-tensors"
    assert not model.runtime.warnings


@pytest.mark.parametrize("kind", BY_INTEGERS)
def test_integers_times_integers_beside_the_librarys_own_run(kind: str) -> None:
    """Both quantize inputs: ours stay as close to floats as the library's, and the next ids are its own."""
    ids, _, logits = reference(kind)
    model = load(FIXTURES / kind, activations="int8")
    recipes = [s.reason for s in model.runtime.selections if s.subject == "kernels"]
    assert any("sums in int32" in recipe or "inputs in int8" in recipe for recipe in recipes)
    ours, own, dense = one_prefill(model, ids), logits["own"], logits["dense"]
    assert float((ours - dense).norm()) < 1.2 * float((own - dense).norm())
    same = ours.argmax(1) == own.argmax(1)
    assert int(same.sum()) >= len(ids) - 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_suite_for_strangers(kind: str) -> None:
    """Foreign checkpoints, missing and cut tensors, wrong shapes."""
    stored = {n: v for n, v in all_stored(tensors(kind)).items() if n.rsplit(".", 1)[-1] not in OPTIONAL}
    method = PLUGIN.bind(info(kind))
    layers = {}
    for name in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj", "lm_head"):
        layer = LayerRequest(name, (64, 64) if name == "lm_head" else shape_of(name))
        weight = method.load(layer, MemoryTensors(stored))
        layers[layer] = fold_transform(dequantize(weight, torch.float32), weight.transform)
    check_quantization(PLUGIN, info(kind), stored, layers)


def test_what_is_left_aside_is_said() -> None:
    said = said_of_quantization(load(FIXTURES / "w8a8_static"))
    assert "meant for inputs in 8-bit int, static by tensor; activations say what they are here" in said
    assert "fixed scales of inputs of 14 layers left aside" in said
    said = said_of_quantization(load(FIXTURES / "fp8_dynamic_kv"))
    assert "4 fixed scales of keys and values left aside: caches scale each token and head" in said
    assert "meant for a cache in 8-bit float, static by tensor" in said
    assert said_of_quantization(load(FIXTURES / "w4a16")).count(";") == 0


def test_a_cache_of_8_bit_floats_scales_by_itself() -> None:
    """The checkpoint's fixed scales are for such a cache; this one is close to a cache of floats without."""
    ids, _, logits = reference("fp8_dynamic_kv")
    model = load(FIXTURES / "fp8_dynamic_kv", kv_cache_dtype="fp8")
    difference = float((one_prefill(model, ids) - logits["dense"]).norm() / logits["dense"].norm())
    assert 0 < difference < 0.1  # random weights have no structure that errors could cancel in


def changed(kind: str, directory: Path, change: dict[str, object], **values: Tensor | None) -> Path:
    """A fixture with another ``quantization_config`` and other tensors; ``None`` takes one out."""
    shutil.copytree(FIXTURES / kind, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"].update(change)
    (directory / "config.json").write_text(json.dumps(config))
    merged = {**tensors(kind), **values}
    kept = {name: value.contiguous() for name, value in merged.items() if value is not None}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def with_weights(kind: str, **changes: object) -> dict[str, object]:
    """``config_groups`` of a fixture with other arguments of the weights."""
    groups = json.loads(json.dumps(info(kind).quantization_config))["config_groups"]
    groups["group_0"]["weights"].update(changes)
    return {"config_groups": groups}


LAYER = "model.layers.1.self_attn.v_proj"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config: sparse weights"),
        ({"sparsity_config": "2:4"}, "sparsity_config: sparse weights"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "transform_config: layers whose inputs"),
        ({"config_groups": {}}, "config_groups is empty"),
        ({"config_groups": []}, "config_groups is no object"),
        ({"config_groups": {"W4A16": ["Linear"]}}, "config_groups.W4A16 is no object"),
        ({"format": "marlin-24", **with_weights("w4a16")}, "format is 'marlin-24', which is not read"),
        ({"format": ["pack-quantized"]}, "which is not read"),
        (with_weights("w4a16", num_bits=9), "weights.num_bits is '9'"),
        (with_weights("w4a16", num_bits=True), "weights.num_bits is 'True'"),
        (with_weights("w4a16", num_bits=1), "weights.num_bits is 1; read are 2 to 8"),
        (with_weights("w4a16", type="bits"), "weights.type is 'bits'"),
        (with_weights("w4a16", strategy="token"), "weights.strategy is 'token'"),
        (with_weights("w4a16", strategy=["group"]), "weights.strategy is"),
        (with_weights("w4a16", strategy="block"), "blocks of integers are not read"),
        (with_weights("w4a16", group_size=0), "weights.group_size is '0'"),
        (with_weights("w4a16", group_size=1 << 80), "weights.group_size is '12089"),
        (with_weights("w4a16", symmetric="no"), "weights.symmetric is 'no'"),
        (with_weights("w4a16", dynamic=True), "weights have to be quantized already"),
        (with_weights("w4a16", type="float"), "holds no 4-bit float by group"),
        ({"ignore": "lm_head"}, "ignore is 'lm_head', expected is a list of texts"),
        ({"ignore": ["re:("]}, "is no regular expression"),
        ({"ignore": ["re:(a+)+$"]}, "which could take for ever"),
        ({"kv_cache_scheme": [8]}, "kv_cache_scheme is no object"),
    ],
)
def test_configurations_that_lie_or_are_not_read(
    change: dict[str, object], said: str, tmp_path: Path
) -> None:
    if "format" in change:  # the scheme's own word would go before
        groups = with_weights("w4a16")["config_groups"]
        groups["group_0"]["format"] = None  # type: ignore[index]
        change = {**change, "config_groups": groups}
    with pytest.raises(ModelLoadError) as caught:
        load(changed("w4a16", tmp_path, change))
    assert said in str(caught.value)
    assert "quantization 'compressed-tensors':" in str(caught.value)


def test_words_of_another_length_are_refused(tmp_path: Path) -> None:
    """Three bits as older writers packed them, ten to a word, have another shape."""
    words = tensors("w3a16")[f"{LAYER}.weight_packed"]
    wider = torch.cat((words, words[:, :1]), dim=1)
    with pytest.raises(ModelLoadError, match=rf"{LAYER}.weight_packed' has shape \(32, 7\)"):
        load(changed("w3a16", tmp_path, {}, **{f"{LAYER}.weight_packed": wider}))


@pytest.mark.parametrize(
    ("kind", "part", "value", "said"),
    [
        ("w4a16", "weight_shape", torch.tensor([64, 32]), "says [64, 32], expected is [32, 64]"),
        ("w4a16", "weight_shape", None, "is missing"),
        ("w4a16", "weight_scale", torch.full((32, 1), torch.nan), "numbers that are not finite"),
        ("w4a16", "weight_scale", torch.ones(32, 2), "has shape (32, 2), expected is (32, 1)"),
        ("w4a16", "weight_scale", torch.ones(32, 1, dtype=torch.int32), "is I32, expected is F64"),
        ("w8a8", "weight", torch.ones(32, 64), "is F32, expected is I8"),
        ("w8a8", "weight_zero_point", torch.ones(32, 1, dtype=torch.int8), "is not 0, though"),
        ("w8a8_static", "input_scale", torch.zeros(1), "not finite and above 0"),
        ("w8a8_static", "input_scale", torch.ones(1, dtype=torch.int8), "is I8 of shape (1,)"),
        ("w8a8_asym", "weight_zero_point", None, "is missing"),
        ("fp8", "weight", torch.full((32, 64), torch.nan).to(torch.float8_e4m3fn), "not finite"),
        ("fp8", "weight", torch.ones(32, 64, dtype=torch.float8_e5m2), "is F8_E5M2, expected is F8_E4M3"),
        ("fp8_block", "weight_scale", torch.ones(1, 1), "has shape (1, 1), expected is (1, 2)"),
        ("nvfp4a16", "weight_global_scale", torch.zeros(1), "divides by 0"),
        ("mxfp4a16", "weight_scale", torch.full((32, 2), 255, dtype=torch.uint8), "exponents of 255"),
        ("w4a16", "weight_g_idx", torch.arange(64, dtype=torch.int32), "each group 64 columns"),
    ],
)
def test_tensors_that_lie(kind: str, part: str, value: Tensor | None, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        load(changed(kind, tmp_path, {}, **{f"{LAYER}.{part}": value}))
    assert f"layer '{LAYER}'" in str(caught.value)
    assert said in str(caught.value)


def test_a_layer_of_other_floats_than_stated_is_no_garbage(tmp_path: Path) -> None:
    """Left out by name, but 8-bit floats in the file: never read as a matrix without its scales."""
    with pytest.raises(ModelLoadError, match=f"{LAYER}.weight' is F8_E4M3"):
        load(changed("fp8", tmp_path, {"ignore": ["lm_head", LAYER]}))


def test_columns_in_another_order() -> None:
    """``actorder`` of older versions: a group's columns lie apart, and ``weight_g_idx`` says where."""
    config = with_weights("w4a16_asym_ordered", actorder="group")
    method = PLUGIN.bind(
        replace(
            info("w4a16_asym_ordered"),
            quantization_config={**(info("w4a16_asym_ordered").quantization_config or {}), **config},
        )
    )
    name = "model.layers.0.mlp.down_proj"
    values = tensors("w4a16_asym_ordered")
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    layer = LayerRequest(name, shape_of(name))
    with pytest.raises(ValueError, match="weight_g_idx' is missing"):
        method.load(layer, MemoryTensors(all_stored(values)))
    index = torch.empty(128, dtype=torch.int32)
    index[order] = (torch.arange(128) // 32).int()
    weight = method.load(layer, MemoryTensors(all_stored({**values, f"{name}.weight_g_idx": index})))
    assert isinstance(weight, GroupedIntWeight)
    codes = torch.empty_like(weight.codes)
    codes[:, weight.transform.index] = weight.codes  # type: ignore[union-attr]
    groups = index.long()
    wanted = (codes.float() - weight.zeros.float()[:, groups]) * weight.scales.float()[:, groups]  # type: ignore[union-attr]
    assert torch.equal(fold_transform(dequantize(weight, torch.float32), weight.transform), wanted)


def test_8_bit_floats_with_powers_of_two() -> None:
    """MXFP8, from its definition: e4m3 and an exponent for 32 columns, 2 ** (e - 127), the last run short."""
    random = torch.Generator().manual_seed(0)
    codes = torch.randn(5, 80, generator=random).to(torch.float8_e4m3fn)
    exponents = torch.tensor([[0, 1, 127], [128, 126, 120], [254, 130, 3], [127, 127, 127], [9, 8, 7]])
    weights = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}
    group = {"targets": ["Linear"], "weights": weights, "format": "mxfp8-quantized"}
    section = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    stored = all_stored({"a.weight": codes, "a.weight_scale": exponents.to(torch.uint8)})
    method = PLUGIN.bind(CheckpointInfo("safetensors", section))
    weight = method.load(LayerRequest("a", (5, 80)), MemoryTensors(stored))
    assert isinstance(weight, Float8Weight)
    powers = torch.ldexp(torch.ones(5, 3, dtype=torch.float64), exponents - 127)
    wanted = codes.double() * powers.repeat_interleave(32, 1)[:, :80]
    assert torch.equal(dequantize(weight, torch.float32), wanted.float())
