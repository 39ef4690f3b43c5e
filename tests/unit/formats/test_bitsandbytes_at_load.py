"""Quantizing at load with the bitsandbytes library: its own numbers, and what is said when it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from hundredfold.plugin import ChannelInt8Weight, Codebook4Weight, LayerRequest
from hundredfold.plugin.dequantize import dequantize
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import check_quantizer
from hundredfold_worker.model import ModelLoadError
from support.llama_checkpoints import random_llama, reference_logits
from support.model_rows import load, one_prefill
from support.tiny_model import make_tiny_model

QUANTIZERS = Registry("hundredfold.quantizers")
NF4, INT8 = (QUANTIZERS.get(f"bitsandbytes-{kind}") for kind in ("nf4", "int8"))
IDS = list(range(7, 60))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_nf4_holds_the_contract() -> None:
    report = check_quantizer(NF4, tolerance=0.12)
    assert len(report.accepted) == 4
    assert report.refused["bitsandbytes-nf4, [33, 96], float32"] == [
        "96 columns are no multiple of the block of 64"
    ]


def test_int8_holds_the_contract() -> None:
    assert not check_quantizer(INT8, tolerance=0.02).refused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nf4_is_the_librarys(dtype: torch.dtype) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    matrix = torch.randn(48, 192, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight = NF4.quantize(LayerRequest("l", (48, 192)), matrix)
    assert isinstance(weight, Codebook4Weight)
    packed, state = functional.quantize_4bit(matrix, blocksize=64, quant_type="nf4")
    state.dtype = torch.float32
    assert torch.equal(dequantize(weight, torch.float32), functional.dequantize_4bit(packed, state))


def test_int8_is_the_librarys() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    matrix = torch.randn(48, 192, generator=torch.Generator().manual_seed(1))
    weight = INT8.quantize(LayerRequest("l", (48, 192)), matrix)
    assert isinstance(weight, ChannelInt8Weight)
    codes, largest, _ = functional.int8_vectorwise_quant(matrix.half())
    assert torch.equal(weight.codes, codes)
    wanted = functional.int8_vectorwise_dequant(codes, largest.float())
    torch.testing.assert_close(dequantize(weight, torch.float32), wanted, rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", ["bitsandbytes-nf4", "bitsandbytes-int8"])
def test_a_model_is_quantized_while_it_loads(tiny: Path, name: str) -> None:
    """The logits are those of the dense model with the library's numbers in every layer but the last."""
    model = load(tiny, quantization=name, quantization_exclude=("lm_head",))
    said = {s.subject: s for s in model.runtime.selections}
    assert said["quantization"].chosen == name
    assert said["quantization"].reason.startswith("asked for; 14 linear layers quantized at load")
    assert said["activations"].chosen == "float"
    reference = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for own, module in reference.named_modules():
        if isinstance(module, torch.nn.Linear) and own != "lm_head":
            layer = LayerRequest(own, tuple(module.weight.shape))
            weight = QUANTIZERS.get(name).quantize(layer, module.weight.data)
            module.weight.data = dequantize(weight, torch.float32)
    assert float((one_prefill(model, IDS) - reference_logits(reference, IDS)).abs().max()) < 1e-3


@pytest.mark.parametrize("name", ["bitsandbytes-nf4", "bitsandbytes-int8"])
def test_without_the_library_the_start_ends_with_what_to_install(
    tiny: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ModelLoadError, match=r"pip install 'hundredfold\[bitsandbytes\]'"):
        load(tiny, quantization=name)


@pytest.mark.parametrize("quantizer", [NF4, INT8], ids=["nf4", "int8"])
def test_weights_that_are_not_finite_are_refused(quantizer: object) -> None:
    matrix = torch.zeros(4, 64)
    matrix[2, 3] = float("inf")
    with pytest.raises(ValueError, match="layer 'l'"):
        quantizer.quantize(LayerRequest("l", (4, 64)), matrix)  # type: ignore[attr-defined]


def test_a_model_of_which_no_layer_can_be_quantized_is_refused(tmp_path: Path) -> None:
    """Asked for and not done would be a model of four times the size that was planned for."""
    directory = tmp_path / "odd"
    random_llama(hidden_size=48, intermediate_size=80, head_dim=12).save_pretrained(directory)
    with pytest.raises(ModelLoadError, match=r"'bitsandbytes-nf4' refuses every layer; .*no multiple"):
        load(directory, quantization="bitsandbytes-nf4")
