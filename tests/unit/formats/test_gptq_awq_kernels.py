"""Every form of GPTQ and AWQ weight in the kernels: none is refused on a CPU, and all agree."""

from __future__ import annotations

import itertools

import pytest
import torch

from hundredfold.plugin import Activations, GroupedIntWeight, LayerRequest, LinearSpec, kernel_reasons
from hundredfold.plugin.dequantize import dequantize, fold_transform
from hundredfold.plugin.integer import multiply_int8
from hundredfold.plugin.quantization import CheckpointInfo
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing.quantization import MemoryTensors
from support.packed_words import gptq_tensors, round_to_nearest
from support.stored_tensors import stored

CPU = torch.device("cpu")
KERNELS = Registry("hundredfold.kernels")
ROWS, COLUMNS = 40, 160


def weight(bits: int, group: int, symmetric: bool, act_order: bool) -> GroupedIntWeight:
    matrix = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) * 0.1
    layer = round_to_nearest(matrix, bits, group, symmetric=symmetric, act_order=act_order)
    section = {"quant_method": "gptq", "bits": bits, "group_size": group, "format": "gptq_v2"}
    method = Registry("hundredfold.quantization").get("gptq").bind(CheckpointInfo("safetensors", section))
    tensors = MemoryTensors(stored(gptq_tensors("a", layer, version=2)))
    read = method.load(LayerRequest("a", (ROWS, COLUMNS)), tensors)
    assert isinstance(read, GroupedIntWeight)
    return read


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_products(bits: int, symmetric: bool) -> None:
    torch.set_num_threads(1)
    inputs = torch.randn(5, COLUMNS, generator=torch.Generator().manual_seed(1))
    for group, act_order in itertools.product((-1, 16, 32, 64, 128), (True, False)):
        read = weight(bits, group, symmetric, act_order)
        exact = inputs.double() @ fold_transform(dequantize(read, torch.float32), read.transform).double().T
        for dtype, recipe in itertools.product((torch.float32, torch.bfloat16), Activations):
            x = inputs.to(dtype)
            spec = LinearSpec("a", read, CPU, dtype, recipe)
            name = "torch" if (dtype, recipe) == (torch.bfloat16, Activations.FLOAT) else "cpu"
            assert kernel_reasons(KERNELS.get(name), spec) == []
            linear = KERNELS.get(name).prepare(spec, None)
            got = linear(x)
            case = f"group {group}, act-order {act_order}, {dtype}, {recipe}"
            if recipe is Activations.INT8:
                assert torch.equal(got, multiply_int8(x, read, None)), case
                tolerance = 0.03
            else:
                tolerance = 1e-5 if dtype is torch.float32 else 0.02
            error = float((got.double() - exact).norm() / exact.norm())
            assert error < tolerance, f"{case}: {error}"
            if name == "cpu":
                kept = 4 if bits <= 4 else 8
                assert f"weights kept in {kept} bits" in linear.recipe, case
