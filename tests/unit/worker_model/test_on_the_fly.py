"""Quantizing while loading: what becomes int8, what patterns except, and what is said about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hundredfold.plugin import (
    Activations,
    BlockHadamard,
    CanonicalWeight,
    ChannelInt8Weight,
    DenseWeight,
    LayerRequest,
)
from hundredfold.plugin.registry import Registry
from hundredfold.plugin.testing import NonConformance, check_quantizer, check_weight, reference_linear
from hundredfold_cpu.kernels import CpuKernels
from hundredfold_cpu.library import variants
from hundredfold_worker.model import LoadedModel, ModelLoadError
from hundredfold_worker.model.decoder import Decoder
from hundredfold_worker.model.on_the_fly import plain_matrix
from support.model_rows import load, run_rows
from support.tiny_model import make_tiny_model

INT8 = Registry("hundredfold.quantizers").get("int8")
IDS = [(list(range(7, 60)), [20, 20, 13]), ([5, 9, 300, 44], [4])]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tied(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the embedding as its output layer."""
    directory = tmp_path_factory.mktemp("tied")
    for file in tiny.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    config = json.loads((tiny / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    return directory


def decoder(model: LoadedModel) -> Decoder:
    return model.decoder  # type: ignore[attr-defined,no-any-return]


def said(model: LoadedModel, subject: str) -> str:
    return next(f"{s.chosen}: {s.reason}" for s in model.runtime.selections if s.subject == subject)


def test_every_linear_layer_becomes_int8(tiny: Path) -> None:
    model = load(tiny, quantization="int8", kernels=("torch",))
    assert said(model, "quantization").startswith("int8: asked for; 15 linear layers")
    # q, k, v and gate, up still are one product each; the recipe is what the weights are meant for
    assert said(model, "activations").startswith("int8: 9 of 9")
    assert [len(layer.qkv.parts) for layer in decoder(model).layers] == [1, 1]
    dense = load(tiny, kernels=("torch",))
    for got, wanted in zip(run_rows(model, IDS), run_rows(dense, IDS), strict=True):
        error = float((got - wanted).norm() / wanted.norm())
        assert 1e-4 < error < 0.1
    assert model.weight_bytes < 0.6 * dense.weight_bytes


def test_company_changes_no_bit(tiny: Path) -> None:
    model = load(tiny, quantization="int8")
    together = run_rows(model, IDS)
    alone = [run_rows(model, [(row, [len(row)])])[0] for row, _ in IDS]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def test_parts_of_joined_layers_are_excepted(tiny: Path) -> None:
    patterns = ("model.layers.0.*", "*.v_proj", "lm_head")
    model = load(tiny, quantization="int8", quantization_exclude=patterns, kernels=("torch",))
    first, second = decoder(model).layers
    assert "int8" not in first.qkv.parts[0].recipe
    assert ["int8" in part.recipe for part in second.qkv.parts] == [True, True, False]
    assert "int8" in second.down.recipe
    assert "int8" not in decoder(model).head.recipe
    assert "excepted: lm_head" in said(model, "quantization")


def test_a_tied_output_layer_is_quantized_beside_its_table(tied: Path) -> None:
    model, dense = load(tied, quantization="int8", kernels=("torch",)), load(tied, kernels=("torch",))
    assert "int8" in decoder(model).head.recipe
    assert isinstance(decoder(model).embedding.weight, DenseWeight)
    assert torch.equal(decoder(model).embedding(torch.arange(9)), decoder(dense).embedding(torch.arange(9)))
    kept = load(tied, quantization="int8", quantization_exclude=("lm_head",), kernels=("torch",))
    assert "int8" not in decoder(kept).head.recipe


def test_float_activations_can_be_had(tiny: Path) -> None:
    model = load(tiny, quantization="int8", activations="float")
    assert said(model, "activations") == "float: asked for"


def test_a_pattern_that_matches_nothing_is_named(tiny: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"'\*\.dwn_proj' matches no linear layer.*down_proj"):
        load(tiny, quantization="int8", quantization_exclude=("lm_head", "*.dwn_proj"))


def test_patterns_need_something_to_except_from(tiny: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"those that do: .*fp8, int8"):
        load(tiny, quantization_exclude=("lm_head",))


def test_weights_that_are_not_finite_are_refused() -> None:
    matrix = torch.zeros(4, 64)
    matrix[2, 3] = float("nan")
    with pytest.raises(ValueError, match="layer 'l'"):
        INT8.quantize(LayerRequest("l", (4, 64)), matrix)


@pytest.mark.parametrize("columns", [1, 30, 64, 96, 576])
def test_the_weight_stands_for_the_matrix(columns: int) -> None:
    matrix = torch.randn(33, columns, generator=torch.Generator().manual_seed(columns))
    matrix[5] = 0
    before = matrix.clone()
    weight = INT8.quantize(LayerRequest("l", (33, columns)), matrix)
    assert torch.equal(matrix, before)
    assert isinstance(weight, ChannelInt8Weight)
    check_weight(weight, (33, columns))
    block = min(64, columns & -columns)
    assert weight.transform == (BlockHadamard(block) if block > 1 else None)
    back = reference_linear(weight, torch.eye(columns, dtype=torch.float64)).T
    assert float((back - matrix).abs().max()) < 0.05
    assert bool((back[5] == 0).all())
    assert torch.allclose(plain_matrix(weight).double(), back, atol=1e-5)
    assert INT8.activations is Activations.INT8


def test_suite_for_quantizers() -> None:
    assert not check_quantizer(INT8, tolerance=0.02).refused
    with pytest.raises(NonConformance, match="relative error"):
        check_quantizer(INT8, tolerance=1e-5)


@pytest.fixture
def favours(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the kernel `cpu` favour such forms, whatever this processor does."""

    def set_to(*forms: type[CanonicalWeight]) -> None:
        monkeypatch.setattr(CpuKernels, "favours", lambda self, device: forms)

    return set_to


def test_fast_is_what_a_kernel_favours(tiny: Path, favours: Callable[..., None]) -> None:
    favours(ChannelInt8Weight)
    fast = load(tiny, quantization="fast", quantization_exclude=("lm_head",))
    assert said(fast, "quantization").startswith(
        "int8: fast: kernel 'cpu' favours ChannelInt8Weight on this machine; 14 linear layers"
    )
    asked = load(tiny, quantization="int8", quantization_exclude=("lm_head",))
    for got, wanted in zip(run_rows(fast, IDS), run_rows(asked, IDS), strict=True):
        assert torch.equal(got, wanted)


def test_fast_is_auto_where_no_kernel_favours_what_a_quantizer_makes(
    tiny: Path, favours: Callable[..., None]
) -> None:
    for forms in ((), (DenseWeight,)):
        favours(*forms)
        plain = load(tiny, quantization="fast", quantization_exclude=("lm_head",))
        assert said(plain, "quantization") == said(load(tiny), "quantization")
    favours(ChannelInt8Weight)
    assert said(load(tiny, quantization="fast", kernels=("torch",)), "quantization").startswith("none")


def test_fast_is_auto_where_inputs_are_asked_for_that_the_weights_are_not_meant_for(
    tiny: Path, favours: Callable[..., None]
) -> None:
    favours(ChannelInt8Weight)
    for activations, chosen in (("float", "none"), ("auto", "int8"), ("int8", "int8")):
        model = load(tiny, quantization="fast", activations=activations)
        assert said(model, "quantization").startswith(f"{chosen}:")


def test_the_cpu_favours_channels_where_it_has_a_matrix_unit() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for variant in variants():
        favoured = CpuKernels(variant).favours(cpu)
        assert favoured == ((ChannelInt8Weight,) if variant.isa.endswith("amx") else ())
        assert CpuKernels(variant).favours(cuda) == ()
