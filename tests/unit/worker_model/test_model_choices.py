"""What is chosen at load, why, and what is refused: device, type, plugins, lengths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hundredfold.models import resolve
from hundredfold.plugin.registry import all_registries
from hundredfold_worker.model import LoadOptions, ModelLoadError, load_model, precision
from hundredfold_worker.model.precision import choose_dtype
from support.distributions import put_distribution
from support.llama_checkpoints import random_llama
from support.model_rows import load

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    random_llama().save_pretrained(directory)
    return directory


def test_the_report_says_everything(checkpoint: Path) -> None:
    model = load(checkpoint, dtype="fp32")
    chosen = {selection.subject: selection for selection in model.runtime.selections}
    assert list(chosen) == [
        "device",
        "dtype",
        "quantization",
        "activations",
        "kernels",
        "elementwise",
        "attention",
        "kv_cache",
    ]
    assert (chosen["device"].chosen, chosen["dtype"].chosen) == ("cpu", "fp32")
    assert chosen["quantization"].chosen == "none"
    assert chosen["elementwise"].chosen == "cpu"
    assert chosen["attention"].chosen == "cpu"
    assert chosen["kv_cache"].chosen == "fp32"
    assert "9 of 9 linear layers" in chosen["kernels"].reason
    assert all(selection.reason for selection in chosen.values())
    refused = {refusal.name: refusal.reasons for refusal in chosen["kv_cache"].refused}
    assert "auto takes unscaled fp32" in refused["bf16"][0]
    assert model.runtime.num_threads == 1
    assert model.description.num_layers == 2


def test_kernels_by_name_and_order(checkpoint: Path) -> None:
    for names in (("torch",), ("torch", "onednn")):
        model = load(checkpoint, kernels=names)
        (kernels,) = (s for s in model.runtime.selections if s.subject == "kernels")
        assert kernels.chosen == "torch"
        assert "asked for" in kernels.reason


@pytest.mark.parametrize(("asked", "nbytes"), [("fp32", 4), ("bf16", 2)])
def test_the_cache_has_the_type_asked_for(checkpoint: Path, asked: str, nbytes: int) -> None:
    planner = load(checkpoint, kv_cache_dtype=asked, block_size=32).cache_planner
    assert planner.bytes_per_block() == 2 * 2 * 2 * 16 * 32 * nbytes
    cache = planner.allocate(3)
    assert (cache.num_blocks, cache.block_size) == (3, 32)
    assert cache.nbytes == 3 * planner.bytes_per_block()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "fp64"}, "dtype 'fp64' is unknown; known are auto, fp32, bf16, fp16"),
        ({"dtype": "fp16"}, "dtype 'fp16' .* set dtype to"),
        ({"activations": "int4"}, "activations 'int4' is unknown; known are auto, float, int8"),
        ({"activations": "int8"}, "activations 'int8' was asked for, but no layer has"),
        ({"device": "tpu"}, "device 'tpu' is unknown; known are auto, cpu, cuda"),
        ({"attention": "flash"}, "'flash' .* installed: .*torch"),
        ({"kernels": ("torch", "fast")}, "'fast' .* installed: .*cpu, onednn, torch"),
        ({"kv_cache_dtype": "int1"}, "'int1' .* installed: .*bf16, fp32"),
        ({"quantization": "gptq9"}, "'gptq9' .* installed: .*gguf, .*none"),
        ({"quantization": "gguf"}, "gguf: reads gguf files, not safetensors"),
        ({"max_model_len": 257}, "max_model_len is 257, the checkpoint allows 1 to 256"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"num_threads": 0}, "num_threads is 0"),
    ],
)
def test_what_cannot_be_had_is_refused_with_reasons(
    checkpoint: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelLoadError) as caught:
        load(checkpoint, **options)
    assert re.search(said, str(caught.value)), str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_named(checkpoint: Path) -> None:
    with pytest.raises(ModelLoadError, match="device 'cuda' was asked for, but torch finds none"):
        load(checkpoint, device="cuda")
    assert load(checkpoint, device="auto").device == CPU


def test_a_plugin_denied_is_not_used(checkpoint: Path) -> None:
    registries = all_registries(deny=("kernels:cpu", "kernels:onednn"))
    options = LoadOptions(dtype="fp32", device="cpu", num_threads=1)
    model = load_model(resolve(str(checkpoint)), options, registries)
    (kernels,) = (s for s in model.runtime.selections if s.subject == "kernels")
    assert kernels.chosen == "torch"
    with pytest.raises(ModelLoadError, match=r"no attention fits .*sparse: leaves keys out: only when"):
        load_model(
            resolve(str(checkpoint)), options, all_registries(deny=("attention:cpu", "attention:torch"))
        )


def test_attention_that_leaves_keys_out_is_told_how_many(checkpoint: Path) -> None:
    model = load(checkpoint, attention="sparse", attention_options={"keep": "0.5", "least": "64"})
    (chosen,) = (s for s in model.runtime.selections if s.subject == "attention")
    assert chosen.chosen == "sparse"
    assert re.search("asked for; .* 0.5 of their weight, as guessed, no less than 64 tokens", chosen.reason)
    for options, said in (
        ({"attention": "sparse", "attention_options": {"keep": "2"}}, "keep is '2', wanted is a share"),
        ({"attention": "cpu", "attention_options": {"keep": "1"}}, "attention 'cpu' takes no options"),
    ):
        with pytest.raises(ModelLoadError, match=said):
            load(checkpoint, **options)


STRANGER = """
from hundredfold_torch.attention import TorchAttention

class Plugin(TorchAttention):
    name = "stranger"
    does = ""

    @property
    def approximation(self):
        if self.does == "raises":
            raise RuntimeError("no words")
        return "a little"

    def told(self, options):
        told = Plugin()
        told.does = options["does"]
        return None if told.does == "gives nothing" else told

    def refuses(self, layer, cache, encoding):
        return ["not so"] if self.does == "refuses" else []
"""


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("raises", "approximation raised RuntimeError: no words"),
        ("refuses", "attention 'stranger' with attention_options: not so"),
        ("gives nothing", r"told\(\) gave NoneType, which has no attribute 'name'"),
    ],
)
def test_attention_that_was_told_is_asked_again(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, said: str
) -> None:
    put_distribution(tmp_path, f"stranger-{len(does)}", "hundredfold.attention", "stranger", STRANGER)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = LoadOptions(
        dtype="fp32", device="cpu", num_threads=1, attention="stranger", attention_options={"does": does}
    )
    with pytest.raises(ModelLoadError, match=said):
        load_model(resolve(str(checkpoint)), options, all_registries())


def test_max_model_len(checkpoint: Path) -> None:
    assert load(checkpoint).max_model_len == 256
    assert load(checkpoint, max_model_len=100).max_model_len == 100


@pytest.mark.parametrize(("has_bf16", "chosen"), [(True, "bf16"), (False, "fp32")])
def test_auto_type_follows_the_processor(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool, chosen: str
) -> None:
    monkeypatch.setattr(precision, "cpu_multiplies_bf16", lambda: has_bf16)
    _, selection = choose_dtype("auto", CPU)
    assert selection.chosen == chosen
    assert choose_dtype("auto", torch.device("cuda"))[1].chosen == "bf16"
    assert choose_dtype("bf16", CPU)[0] == torch.bfloat16
