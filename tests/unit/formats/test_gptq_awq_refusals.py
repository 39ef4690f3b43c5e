"""GPTQ and AWQ checkpoints that cannot be read, or lie: one clear error; none is taken by mistake."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hundredfold.plugin import CheckpointInfo, LayerRequest
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing.quantization import MemoryTensors
from support.packed_words import awq_tensors, gptq_tensors, round_to_nearest
from support.stored_tensors import stored

FORMATS = Registry("hundredfold.quantization")
MODEL = {"quantizer": ["gptqmodel:7.7.0"]}
LAYER = LayerRequest("model.layers.0.mlp.up_proj", (32, 160))


def info(method: str | None, **values: Any) -> CheckpointInfo:
    return CheckpointInfo("safetensors", {"quant_method": method, "bits": 4, "group_size": 32, **values})


@pytest.mark.parametrize(
    ("plugin", "own"),
    [
        ("gptq", info("gptq")),
        ("gptq", info("gptq", format="gptq_v2")),
        ("gptq", info(None, desc_act=True)),
        ("gptq", info("auto-round", packing_format="auto_round:auto_gptq", data_type="int", act_bits=16)),
        ("gptq", info("auto-round", packing_format="auto_round:gptqmodel")),
        ("gptq", info("auto-round", packing_format="auto_round")),
        ("gptq", info("intel/auto-round", backend="auto_round:exllamav2")),
        ("awq", info("awq")),
        ("awq", info("awq", version="GEMM")),
        ("awq", info("awq", checkpoint_format="gemm")),
        ("awq", info("gptq", checkpoint_format="gemm")),
        ("awq", info(None, w_bit=4, q_group_size=128)),
        ("awq", info("auto-round", packing_format="auto_round:auto_awq")),
    ],
)
def test_taken_by_one(plugin: str, own: CheckpointInfo) -> None:
    takers = [name for name in ("gptq", "awq") if FORMATS.get(name).refuses(own) == []]
    assert takers == [plugin]
    FORMATS.get(plugin).bind(own)


@pytest.mark.parametrize(
    ("plugin", "strange", "said"),
    [
        ("gptq", info("gptq", checkpoint_format="gptq_p", bits=3), "'gptq_p' is not read"),
        ("gptq", info("gptq", bits=3, meta=MODEL), "always names the layout in 'checkpoint_format'"),
        ("gptq", info("gptq", is_marlin_format=True), "'marlin' is not read"),
        ("gptq", info("gptq", format="bitblas"), "reads formats gptq and gptq_v2, not 'bitblas'"),
        ("gptq", info("gptq", format=["gptq"]), "not ['gptq']"),
        ("gptq", info("auto-round", packing_format="auto_round:llm_compressor"), "llm_compressor"),
        ("gptq", info("auto-round", data_type="mx_fp"), "data_type int, not 'mx_fp'"),
        ("gptq", info("auto-round", act_bits=8), "inputs of 8 bits (act_bits)"),
        ("gptq", CheckpointInfo("gguf", None), "reads safetensors, not gguf"),
        ("awq", info("awq", version="gemv"), "'gemv' is not read"),
        ("awq", info("awq", version="GEMV_FAST"), "'gemv_fast' is not read"),
        ("awq", info("awq", backend="llm-awq"), "llm-awq's layout is not read"),
        ("awq", info("awq", format="marlin"), "'marlin' is not read"),
        ("awq", info("awq", version=7), "reads version gemm, not '7'"),
        ("awq", info("auto-round", packing_format="auto_round:auto_awq", act_bits=8), "inputs of 8 bits"),
        ("awq", CheckpointInfo("safetensors", None), "reads quant_method awq, not None"),
    ],
)
def test_refused_with_the_reason(plugin: str, strange: CheckpointInfo, said: str) -> None:
    (reason,) = FORMATS.get(plugin).refuses(strange)
    assert said in reason


@pytest.mark.parametrize("plugin", ["gptq", "awq"])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"bits": 9}, "'bits' is 9, expected is one of"),
        ({"bits": True}, "'bits' is True, expected is a whole number"),
        ({"bits": "4"}, "'bits' is '4', expected is a whole number"),
        ({"bits": None}, "'bits' is missing"),
        ({"group_size": 0}, "'group_size' is 0, expected is a number of columns, or -1"),
        ({"group_size": -2}, "'group_size' is -2"),
        ({"group_size": {}}, "'group_size' is {}, expected is a whole number"),
        ({"pack_dtype": "int16"}, "'pack_dtype' is 'int16', expected is int32"),
        ({"dynamic": []}, "'dynamic' is [], expected is an object"),
        ({"dynamic": {"+:a": 4}}, "'dynamic.+:a' is no object"),
        ({"dynamic": {"+:a": {"bits": 9}}}, "'dynamic.+:a.bits' is 9"),
        ({"dynamic": {"+:(": {}}}, "dynamic.+:("),
        ({"dynamic": {"+:(a+)+$": {}}}, "dynamic.+:(a+)+$"),
        ({"dynamic": {f"+:{i}": {} for i in range(300)}}, "300 patterns for layers, the limit is 256"),
        ({"extra_config": {"lm_head": {"group_size": 0}}}, "'extra_config.lm_head.group_size' is 0"),
    ],
)
def test_a_value_that_cannot_be(plugin: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        FORMATS.get(plugin).bind(info(plugin, **values))
    assert said in str(caught.value)


def test_desc_act_is_a_flag() -> None:
    with pytest.raises(ValueError, match="'desc_act' is 'yes', expected is true or false"):
        FORMATS.get("gptq").bind(info("gptq", desc_act="yes"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"bits": 8}, "qweight' has shape"),  # 4 bits in truth
        ({"bits": 3}, "qweight' has shape"),
        ({"group_size": 64}, "' has shape"),
        ({"group_size": -1}, "' has shape"),
    ],
)
@pytest.mark.parametrize("plugin", ["gptq", "awq"])
def test_mislabelled(plugin: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"layer 'model\.layers\.0\.mlp\.up_proj': tensor") as caught:
        load(plugin, info(plugin, **values))
    assert said in str(caught.value)


@pytest.mark.parametrize("plugin", ["gptq", "awq"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scales_that_are_no_numbers(plugin: str, value: float) -> None:
    with pytest.raises(ValueError, match=r"up_proj\.scales' holds numbers that are not finite"):
        load(plugin, info(plugin), scales=value)


@pytest.mark.parametrize("plugin", ["gptq", "awq"])
def test_words_of_another_type(plugin: str) -> None:
    tensors = packed(plugin)
    name = f"{LAYER.name}.qweight"
    tensors[name] = tensors[name].float()
    with pytest.raises(ValueError, match=r"up_proj\.qweight' is F32, expected is I32"):
        FORMATS.get(plugin).bind(info(plugin)).load(LAYER, MemoryTensors(stored(tensors)))


@pytest.mark.parametrize("plugin", ["gptq", "awq"])
def test_quantized_though_a_rule_says_otherwise(plugin: str) -> None:
    method = FORMATS.get(plugin).bind(info(plugin, dynamic={r"-:.*up_proj": {}}))
    assert not method.covers(LAYER)
    with pytest.raises(ValueError, match="a rule leaves it as it was, its tensors do not"):
        method.load(LAYER, MemoryTensors(stored(packed(plugin))))


def test_awq_needs_whole_runs() -> None:
    with pytest.raises(ValueError, match="36 output features are no multiple of 8"):
        FORMATS.get("awq").bind(info("awq")).load(
            LayerRequest(LAYER.name, (36, 160)), MemoryTensors(stored(packed("awq")))
        )


def packed(plugin: str) -> dict[str, torch.Tensor]:
    matrix = torch.randn(LAYER.shape, generator=torch.Generator().manual_seed(0))
    layer = round_to_nearest(matrix, 4, 32)
    return gptq_tensors(LAYER.name, layer) if plugin == "gptq" else awq_tensors(LAYER.name, layer)


def load(plugin: str, checkpoint: CheckpointInfo, scales: float | None = None) -> None:
    tensors = packed(plugin)
    if scales is not None:
        tensors[f"{LAYER.name}.scales"][1, 2] = scales
    FORMATS.get(plugin).bind(checkpoint).load(LAYER, MemoryTensors(stored(tensors)))
