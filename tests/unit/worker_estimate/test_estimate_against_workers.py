"""What ``hundredfold estimate`` says against what a worker holds: every architecture, form and encoding."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hundredfold.models import DEFAULT_MODEL
from hundredfold_worker.estimate.estimate import Asked, Estimate, estimate
from hundredfold_worker.estimate.machine import Wish
from hundredfold_worker.model import LoadedModel
from support.model_rows import load
from support.random_checkpoints import FAMILIES, random_model
from support.repo import ROOT

BLOCK = 16
CHECKPOINTS = sorted((ROOT / "tests" / "fixtures" / "compressed_tensors").iterdir())


def told(model: str | Path, dtype: str = "fp32", **asked: Any) -> Estimate:
    wish = Wish(device="cpu", dtype=dtype, total=1 << 34)
    return estimate(Asked(str(model), wish, block_size=BLOCK, **asked))


def check(found: Estimate, model: LoadedModel, share: float) -> None:
    now = found.case.now
    assert now.weights == pytest.approx(model.runtime.weight_bytes, rel=share)
    assert now.block == model.cache_planner.bytes_per_block()
    assert found.source.outline.num_parameters == pytest.approx(model.runtime.num_parameters, rel=0.001)


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    random_model(request.param).save_pretrained(directory)
    return directory


def test_every_architecture(family: Path, tmp_path: Path) -> None:
    model = load(family, kv_cache_dtype="int4")
    found = told(family, kv_cache_dtype="int4")
    check(found, model, 0.02)
    shutil.copy(family / "config.json", tmp_path)
    bare = told(tmp_path / "config.json", kv_cache_dtype="int4")
    check(bare, model, 0.02)
    # the files hold fp32, as their headers and the configuration say
    assert bare.source.stored_bytes == pytest.approx(found.source.stored_bytes, rel=0.03)
    assert (bare.source.file_bytes, found.source.file_bytes is None) == (None, False)


@pytest.mark.parametrize("directory", CHECKPOINTS, ids=lambda path: path.name)
def test_quantized_checkpoints(directory: Path) -> None:
    model = load(directory, dtype="auto")
    now = told(directory, "auto").case.now
    # layers of 64 rows and less: what fills up the last group and panel weighs more than in real ones
    assert now.weights == pytest.approx(model.runtime.weight_bytes, rel=0.06)


@pytest.mark.parametrize("quantization", ["int8"])
def test_quantized_at_load(family: Path, quantization: str) -> None:
    model = load(family, quantization=quantization)
    check(told(family, quantization=quantization), model, 0.03)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("auto", {}),
        ("fp32", {}),
        ("auto", {"quantization": "int8", "kv_cache_dtype": "int8"}),
    ],
)
def test_the_default_model_within_two_percent(dtype: str, options: dict[str, str]) -> None:
    model = load(DEFAULT_MODEL, dtype=dtype, block_size=BLOCK, **options)
    check(told(DEFAULT_MODEL, model.runtime.dtype if dtype == "fp32" else "auto", **options), model, 0.02)
