"""GPTQ and AWQ layers packed by hand, in every form that is read: the numbers in float32 to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hundredfold.plugin import CheckpointInfo, DenseWeight, GroupedIntWeight, LayerRequest, Permute
from hundredfold.plugin.bit_stream import unpack
from hundredfold.plugin.dequantize import dequantize, fold_transform
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_quantization
from hundredfold.plugin.testing.quantization import MemoryTensors
from support.packed_words import Quantized, awq_tensors, gptq_tensors, round_to_nearest, stream
from support.stored_tensors import stored

FORMATS = Registry("hundredfold.quantization")
ROWS, COLUMNS = 32, 160
"""Groups of 64 and 128 columns are short at the end."""
LAYER = LayerRequest("a", (ROWS, COLUMNS))


def random(rows: int = ROWS, columns: int = COLUMNS) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def section(method: str, **values: Any) -> CheckpointInfo:
    return CheckpointInfo("safetensors", {"quant_method": method, "bits": 4, "group_size": 32, **values})


def read(info: CheckpointInfo, tensors: Mapping[str, Tensor], layer: LayerRequest = LAYER) -> Any:
    plugin = FORMATS.get(str((info.quantization_config or {})["quant_method"]))
    assert plugin.refuses(info) == []
    return plugin.bind(info).load(layer, MemoryTensors(stored(tensors)))


def matrix(weight: Any) -> Tensor:
    return fold_transform(dequantize(weight, torch.float32), weight.transform)


@pytest.mark.parametrize("form", ["gptq", "gptq_v2", None])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(bits: int, form: str | None) -> None:
    """Every group, symmetric or not, columns in order or not; without a name it is version 1."""
    version = 2 if form == "gptq_v2" else 1
    named = {} if form is None else {"checkpoint_format": form}
    for group, symmetric, act_order in itertools.product(
        (-1, 16, 32, 48, 64, 128, 512), (True, False), (True, False)
    ):
        layer = round_to_nearest(random(), bits, group, symmetric=symmetric, act_order=act_order)
        info = section("gptq", bits=bits, group_size=group, desc_act=act_order, sym=symmetric, **named)
        weight = read(info, gptq_tensors("a", layer, version))
        case = f"{bits} bits, group {group}, symmetric {symmetric}, act-order {act_order}"
        assert isinstance(weight, GroupedIntWeight), case
        assert weight.scales.dtype == torch.float16, case
        assert isinstance(weight.transform, Permute) == (act_order and -1 < group < COLUMNS), case
        assert torch.equal(matrix(weight), layer.matrix), case


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
def test_awq(bits: int, symmetric: bool, kind: torch.dtype) -> None:
    for group in (-1, 16, 32, 64, 128):
        layer = round_to_nearest(random(), bits, group, symmetric=symmetric, kind=kind)
        info = section("awq", bits=bits, group_size=group, version="GEMM", zero_point=not symmetric)
        weight = read(info, awq_tensors("a", layer))
        assert weight.scales.dtype == kind
        assert torch.equal(matrix(weight), layer.matrix), f"group {group}"


def test_words_of_the_definition() -> None:
    """Features 0 to 7 that hold 0 to 7 are 0x76543210 for GPTQ and 0x75316420 for AWQ; report 59."""
    numbers = np.arange(8, dtype=np.int64)[:, None]
    layer = Quantized(numbers, np.zeros((8, 1), np.int64), torch.ones(8, 1), np.zeros(1, np.int64), 4)
    assert awq_tensors("a", layer)["a.qweight"].tolist() == [[0x75316420]]
    across = Quantized(numbers.T, np.zeros((1, 1), np.int64), torch.ones(1, 1), np.zeros(8, np.int64), 4)
    assert gptq_tensors("a", across)["a.qweight"].tolist() == [[0x76543210]]


@pytest.mark.parametrize("bits", range(2, 9))
def test_packing_is_undone(bits: int) -> None:
    """All codes, the top bit of a word among them; report 56."""
    count = 133
    numbers = np.random.default_rng(bits).integers(0, 2**bits, (5, count))
    numbers[0], numbers[1] = 2**bits - 1, 0
    words = stream(numbers, bits)
    assert torch.equal(unpack(words.view(torch.uint8), bits, count).long(), torch.from_numpy(numbers))
    with pytest.raises(ValueError, match=f"{words.shape[1] * 32 // bits + 1} codes of {bits} bits take"):
        unpack(words.view(torch.uint8), bits, words.shape[1] * 32 // bits + 1)


class TestZeroPointsLessOne:
    """Version 1 stores zero points less one; what 0 becomes depends on the writer."""

    LAYER = round_to_nearest(random(), 4, 32)

    def test_a_zero_of_none_wraps_around(self) -> None:
        assert (self.LAYER.zeros == 0).any()
        weight = read(section("gptq"), gptq_tensors("a", self.LAYER))
        assert torch.equal(weight.zeros.long(), torch.from_numpy(self.LAYER.zeros))

    @pytest.mark.parametrize("bits", [2, 4, 8])
    def test_gptqmodel_subtracts_from_whole_words(self, bits: int) -> None:
        """One is borrowed from the neighbour: only adding to whole words gives it back."""
        layer = round_to_nearest(random(), bits, 32)
        tensors = gptq_tensors("a", layer, version=2)
        ones = sum(1 << place for place in range(0, 32, bits))
        tensors["a.qzeros"] = (tensors["a.qzeros"].long() - ones).to(torch.int32)
        written = section("gptq", bits=bits, meta={"quantizer": ["gptqmodel:7.7.0"]})
        assert torch.equal(matrix(read(written, tensors)), layer.matrix)
        others = section("gptq", bits=bits, checkpoint_format="gptq")
        assert not torch.equal(matrix(read(others, tensors)), layer.matrix)

    @pytest.mark.parametrize(("stored_as", "said"), [(1, "gptq_v2"), (2, "gptq")])
    @pytest.mark.parametrize("bits", [2, 3, 4, 8])
    def test_the_wrong_version_of_a_symmetric_one(self, bits: int, stored_as: int, said: str) -> None:
        layer = round_to_nearest(random(), bits, 32, symmetric=True)
        info = section("gptq", bits=bits, sym=True, checkpoint_format=said)
        with pytest.raises(ValueError, match=rf"'a\.qzeros' gives .*'sym' is true.* them {2 ** (bits - 1)}:"):
            read(info, gptq_tensors("a", layer, stored_as))

    def test_asymmetric_though_called_symmetric(self) -> None:
        weight = read(section("gptq", sym=True), gptq_tensors("a", self.LAYER))
        assert torch.equal(matrix(weight), self.LAYER.matrix)

    def test_version_2_read_as_version_1_differs(self) -> None:
        weight = read(section("gptq"), gptq_tensors("a", self.LAYER, version=2))
        assert not torch.equal(matrix(weight), self.LAYER.matrix)


class TestColumnsOfGroups:
    """``g_idx``, there or not, true or trivial."""

    def test_missing_where_nothing_needs_it(self) -> None:
        layer = round_to_nearest(random(), 4, 64)
        weight = read(section("gptq", group_size=64), gptq_tensors("a", layer, g_idx=False))
        assert torch.equal(matrix(weight), layer.matrix)

    def test_missing_where_order_matters(self) -> None:
        layer = round_to_nearest(random(), 4, 64)
        with pytest.raises(ValueError, match=r"'a': tensor 'a\.g_idx' is missing, and desc_act is true"):
            read(section("gptq", group_size=64, desc_act=True), gptq_tensors("a", layer, g_idx=False))

    def test_in_order_though_called_act_order(self) -> None:
        layer = round_to_nearest(random(), 4, 64)
        weight = read(section("gptq", group_size=64, desc_act=True), gptq_tensors("a", layer))
        assert weight.transform is None
        assert torch.equal(matrix(weight), layer.matrix)

    def test_strewn_though_called_in_order(self) -> None:
        layer = round_to_nearest(random(), 4, 64, act_order=True)
        weight = read(section("gptq", group_size=64), gptq_tensors("a", layer))
        assert torch.equal(matrix(weight), layer.matrix)

    def test_groups_of_different_sizes_become_floats(self) -> None:
        layer = round_to_nearest(random(), 4, 64)
        owner = layer.owner.copy()
        owner[:40] = 1
        strange = Quantized(layer.codes, layer.zeros, layer.scales, owner, 4)
        weight = read(section("gptq", group_size=64, desc_act=True), gptq_tensors("a", strange))
        assert isinstance(weight, DenseWeight)
        assert torch.equal(matrix(weight), strange.matrix)

    @pytest.mark.parametrize("group", [-1, 3])
    def test_out_of_range(self, group: int) -> None:
        tensors = gptq_tensors("a", round_to_nearest(random(), 4, 64))
        tensors["a.g_idx"][7] = group
        with pytest.raises(ValueError, match=rf"'a\.g_idx' names group {group}, there are 0 to 2"):
            read(section("gptq", group_size=64), tensors)


@pytest.mark.parametrize(
    ("packing", "version"),
    [("auto_round:auto_gptq", 1), ("auto_round:gptqmodel", 2), ("auto_round", 2), ("auto_round:auto_awq", 0)],
)
def test_auto_round(packing: str, version: int) -> None:
    """Its layouts are others' under other names; layers that differ are named, or matched by a pattern."""
    name = "model.layers.3.mlp.down_proj"
    layer = round_to_nearest(random(), 8 if version else 4, 64)
    tensors = gptq_tensors(name, layer, version) if version else awq_tensors(name, layer)
    values = {"bits": 8, "group_size": 64} if version else {"group_size": 64}
    plain = {"bits": 16, "data_type": "fp"}
    for extra in ({name: values}, {r".*mlp\.down_proj.*": values}):
        own = {"packing_format": packing, "sym": False, "extra_config": {"lm_head": plain, **extra}}
        info = CheckpointInfo(
            "safetensors", {"quant_method": "auto-round", "bits": 4, "group_size": 32, **own}
        )
        method = FORMATS.get("gptq" if version else "awq").bind(info)
        weight = method.load(LayerRequest(name, (ROWS, COLUMNS)), MemoryTensors(stored(tensors)))
        assert torch.equal(matrix(weight), layer.matrix)
        assert not method.covers(LayerRequest("lm_head", (ROWS, COLUMNS)))


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_passes_the_suite(act_order: bool) -> None:
    layer = round_to_nearest(random(), 3, 64, act_order=act_order)
    tensors = stored(gptq_tensors("a", layer, g_idx=act_order))
    info = section("gptq", bits=3, group_size=64, desc_act=act_order)
    check_quantization(FORMATS.get("gptq"), info, tensors, {LAYER: layer.matrix}, tolerance=0)


@pytest.mark.parametrize("bits", [3, 4])
def test_awq_passes_the_suite(bits: int) -> None:
    layer = round_to_nearest(random(), bits, 64)
    info, tensors = section("awq", bits=bits, group_size=64), stored(awq_tensors("a", layer))
    check_quantization(FORMATS.get("awq"), info, tensors, {LAYER: layer.matrix}, tolerance=0)
