"""``bench.long_context``: both sides decode over one cache, also of copied prompts, and refusals are said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from hundredfold.config import load
from hundredfold_worker.bench.long_decode import Load, command, measure
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.quality.decode import DecodingRows
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import open_registries, start_model
from support.tiny_model import make_tiny_model

SMALL = Load(batch=3, context=150, steps=4, texts=2)
PART = ":dtype=fp32,attention=sparse,attention_options=keep=0.3,attention_options=least=64"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


def started(tiny: str, attention: str) -> LoadedModel:
    flags = {"model": tiny, "dtype": "fp32", "attention": attention, "block_size": 16}
    settings = load(WorkerSettings, file=None, flags=flags)
    return start_model(settings, open_registries(settings)).model


@pytest.mark.parametrize("cache", ["fp32", "int8"])
def test_both_sides_are_timed(tiny: str, cache: str) -> None:
    row = measure(f"{tiny}:dtype=fp32", PART, cache, SMALL)
    assert row.cache == cache
    assert min(row.exact.seconds, row.part.seconds, row.exact.processor_seconds) > 0


def test_a_copied_prompt_is_a_prompt_and_exact_attention_reads_the_cache_of_sparse(tiny: str) -> None:
    windows = [tuple(range(5, 105))] * 2
    exact = started(tiny, "cpu")
    own = DecodingRows(exact, 16, windows)
    list(own.read_prompts(90, 32))
    copied = DecodingRows(started(tiny, "sparse"), 16, windows)
    list(copied.read_prompt(0, 90, 32))
    copied.copy_row(0, 1)
    shared = DecodingRows(exact, 16, windows, copied.cache)
    with torch.inference_mode():
        truth = [logits.clone() for logits, _ in own.steps(90, 3)]
        for wanted, (logits, _) in zip(truth, shared.steps(90, 3), strict=True):
            assert torch.equal(logits, wanted)


def test_the_command_prints_a_line_for_each_cache(tiny: str, tmp_path: Path) -> None:
    flags = "--batch 2 --context 120 --steps 4 --texts 1 --caches fp32,bf16"
    done = CliRunner().invoke(command, [f"{tiny}:dtype=fp32", PART, *flags.split()])
    assert done.exit_code == 0, done.output
    assert "fp32" in done.output
    assert "bf16" in done.output
    long = CliRunner().invoke(command, [tiny, "", "--context", "5000"])
    assert long.exit_code == 1
    assert "the model takes 2048" in long.output
    other = CliRunner().invoke(command, [tiny, "", "--caches", "fp99"])
    assert other.exit_code == 1
    assert "fp99" in other.output
