"""Which layers multiply int8 inputs: what is asked for, what auto makes of it; nothing else decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from hundredfold.plugin import Activations, DenseWeight, GroupedIntWeight, LinearSpec, Zero, kernel_reasons
from hundredfold_worker.model import LoadedModel, ModelLoadError
from support.llama_checkpoints import random_llama, write_gguf
from support.model_rows import load, one_prefill, run_rows

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("integers") / "model.gguf"
    write_gguf(random_llama(), path, lambda name: Kind.Q8_0 if name.startswith("token") else Kind.Q4_1)
    return path


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dense") / "model.gguf"
    write_gguf(random_llama(), path, lambda name: Kind.F32)
    return path


def chosen(model: LoadedModel) -> tuple[str, str]:
    (selection,) = (s for s in model.runtime.selections if s.subject == "activations")
    return selection.chosen, selection.reason


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ({"dtype": "auto"}, "int8", "9 of 9 linear layers, auto: integer weights on a CPU"),
        ({"dtype": "fp32"}, "float", "dtype fp32 was asked for"),
        ({"dtype": "fp32", "activations": "int8"}, "int8", "9 of 9 linear layers, asked for"),
        ({"dtype": "auto", "activations": "float"}, "float", "asked for"),
        ({"dtype": "auto", "kernels": ("onednn", "torch")}, "float", "no kernel in use multiplies int8"),
    ],
    ids=str,
)
def test_what_is_chosen_and_why(integers: Path, options: dict[str, Any], kind: str, reason: str) -> None:
    model = load(integers, **options)
    found, why = chosen(model)
    assert found == kind
    assert reason in why
    recipes = [s.reason for s in model.runtime.selections if s.subject == "kernels"]
    assert all(("inputs in int8" in recipe) is (kind == "int8") for recipe in recipes)


def test_dense_weights_keep_floats(dense: Path) -> None:
    assert chosen(load(dense, dtype="auto"))[0] == "float"
    with pytest.raises(ModelLoadError, match="activations 'int8' was asked for, but no layer has integer"):
        load(dense, activations="int8")


def test_a_kernel_that_cannot_is_not_asked_for_less(integers: Path) -> None:
    with pytest.raises(ModelLoadError, match="onednn: does not multiply inputs as int8"):
        load(integers, activations="int8", kernels=("onednn",))


def test_a_kernel_without_the_attribute_never_sees_int8() -> None:
    class Old:
        name, api_version, priority = "old", 1, 5
        asked = 0

        def refuses(self, spec: LinearSpec) -> list[str]:
            self.asked += 1
            return []

        def prepare(self, spec: LinearSpec, bias: torch.Tensor | None) -> Any:
            raise AssertionError(spec)

    old = Old()
    codes = torch.zeros(4, 32, dtype=torch.uint8)
    weight = GroupedIntWeight(codes, torch.ones(4, 1), None, 4, 32, Zero.POINT)
    spec = LinearSpec("layer", weight, CPU, torch.float32, Activations.INT8)
    assert kernel_reasons(old, spec) == ["does not multiply inputs as int8"]
    assert old.asked == 0
    assert kernel_reasons(old, LinearSpec("layer", DenseWeight(torch.ones(4, 4)), CPU, torch.float32)) == []


def test_the_loss_is_small_and_the_reference_agrees(integers: Path) -> None:
    ids = [5, 9, 2, 77, 31, 8, 60, 3]
    exact = one_prefill(load(integers, dtype="fp32"), ids)
    ours = one_prefill(load(integers, dtype="fp32", activations="int8"), ids)
    reference = one_prefill(load(integers, dtype="fp32", activations="int8", kernels=("torch",)), ids)
    assert 0 < float((ours - exact).norm() / exact.norm()) < 0.05
    assert torch.allclose(ours, reference, rtol=1e-4, atol=1e-4)


def test_the_same_bits_in_chunks_and_in_company(integers: Path) -> None:
    model = load(integers, dtype="fp32", activations="int8")
    ids = list(range(3, 40))
    alone = one_prefill(model, ids)
    others = [(list(range(50 + i, 80)), [30 - i]) for i in range(9)]
    found = run_rows(model, [(ids, [20, 1, 1, 15]), *others])
    assert torch.equal(found[0], alone)
    assert torch.equal(run_rows(model, [(ids, [1] * len(ids))])[0], alone)
