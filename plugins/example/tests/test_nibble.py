"""The plugin proves itself with hundredfold's own suite, the way any package can."""

import numpy as np
import pytest
import torch

from hundredfold.plugin import CheckpointInfo, LayerRequest, StoredTensor
from hundredfold.plugin.registry import PluginState, Registry
from hundredfold.plugin.testing import check_quantization
from nibble.format import Nibble
from nibble.write import dequantize, quantize

OURS = CheckpointInfo("safetensors", {"quant_method": "nibble", "modules_to_not_convert": ["head"]})
ENCODING = {torch.uint8: "U8", torch.float16: "F16"}


def stored(name: str, tensor: torch.Tensor) -> StoredTensor:
    raw = np.frombuffer(tensor.contiguous().numpy().tobytes(), dtype=np.uint8)
    return StoredTensor(name, ENCODING[tensor.dtype], tuple(tensor.shape), raw)


def test_what_is_read_is_what_was_written() -> None:
    tensors, layers = {}, {}
    for name, shape in (("a", (48, 64)), ("model.b", (7, 96)), ("c", (1, 32))):
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(shape[1]))
        nibbles, scales = quantize(weight)
        for tensor in (stored(f"{name}.nibbles", nibbles), stored(f"{name}.scales", scales)):
            tensors[tensor.name] = tensor
        layers[LayerRequest(name, shape)] = dequantize(nibbles, scales)
    report = check_quantization(Nibble(), OURS, tensors, layers, tolerance=0)
    assert report.accepted == ["a", "model.b", "c"]


def test_the_loss_is_half_a_step_at_most() -> None:
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    nibbles, scales = quantize(weight)
    steps = scales.float().repeat_interleave(32, dim=1)
    assert ((dequantize(nibbles, scales) - weight).abs() <= steps * 0.51).all()


def test_zeros_and_odd_rows() -> None:
    nibbles, scales = quantize(torch.zeros(3, 32))
    assert not dequantize(nibbles, scales).any()
    with pytest.raises(ValueError, match="rows of 40 are no multiple of 32"):
        quantize(torch.zeros(3, 40))


def test_layers_that_stayed_floats_are_not_covered() -> None:
    method = Nibble().bind(OURS)
    assert not method.covers(LayerRequest("head", (4, 32)))
    assert method.covers(LayerRequest("a", (4, 32)))


def test_hundredfold_finds_it() -> None:
    registry = Registry("hundredfold.quantization")
    assert registry.get("nibble").name == "nibble"
    record = next(record for record in registry.records() if record.name == "nibble")
    assert record.state is PluginState.LOADED
    assert record.distribution.startswith("hundredfold-nibble ")
