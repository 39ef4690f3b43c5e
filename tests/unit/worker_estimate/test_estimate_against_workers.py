"""What ``hundredfold estimate`` says against what a worker holds: every architecture, form and encoding."""

from __future__ import annotations

import json
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
FIXTURES = ROOT / "tests" / "fixtures"
CHECKPOINTS = [
    directory
    for kind in ("compressed_tensors", "gptq", "awq", "fp8")
    for directory in sorted((FIXTURES / kind).iterdir())
    if (directory / "model.safetensors").exists()
]


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
    found = told(directory, "auto")
    # layers of 64 rows and less: what fills up the last group and panel weighs more than in real ones, and
    # so do offsets: float32 is reckoned with, but float16 holds a scale times a zero point of 2 bits at times
    assert found.case.now.weights == pytest.approx(model.runtime.weight_bytes, rel=0.08)


@pytest.mark.parametrize("directory", CHECKPOINTS, ids=lambda path: path.name)
def test_a_configuration_alone_tells_what_the_files_hold(directory: Path, tmp_path: Path) -> None:
    """But for numbers that stand once in a layer and weigh nothing in larger ones."""
    found = told(directory, "auto")
    config = json.loads((directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    bare = told(tmp_path / "config.json", "auto")
    assert bare.forms == found.forms
    assert bare.source.stored_bytes == pytest.approx(found.source.stored_bytes, rel=0.03)


@pytest.mark.parametrize("quantization", ["int8", "fp8", "bitsandbytes-int8", "fast"])
def test_quantized_at_load(family: Path, quantization: str) -> None:
    model = load(family, quantization=quantization)
    check(told(family, quantization=quantization), model, 0.03)


def test_attention_that_keeps_more() -> None:
    options = {"attention": "sparse", "kv_cache_dtype": "int8"}
    model = load(DEFAULT_MODEL, block_size=BLOCK, **options)
    assert told(DEFAULT_MODEL, **options).case.now.block == model.cache_planner.bytes_per_block()


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("auto", {}),
        ("fp32", {}),
        ("auto", {"quantization": "int8", "kv_cache_dtype": "int8"}),
        ("auto", {"quantization": "fast", "kv_cache_dtype": "int8"}),
    ],
)
def test_the_default_model_within_two_percent(dtype: str, options: dict[str, str]) -> None:
    model = load(DEFAULT_MODEL, dtype=dtype, block_size=BLOCK, **options)
    check(told(DEFAULT_MODEL, model.runtime.dtype if dtype == "fp32" else "auto", **options), model, 0.02)
