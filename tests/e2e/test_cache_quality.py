"""Report 78: what a quantized cache loses of the default model stays under the bar, over a fixed text."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hundredfold.models import DEFAULT_MODEL
from hundredfold_worker.quality import command

FLOATS = "dtype=fp32,activations=float,kv_cache_dtype="


@pytest.mark.parametrize("cache", ["int8", "fp8"])
def test_perplexity_rises_by_less_than_one_percent(cache: str) -> None:
    sides = (f"{DEFAULT_MODEL}:{FLOATS}fp32", f":{FLOATS}{cache}")
    bar = ("--tokens", "2048", "--max-perplexity-increase", "1%")
    done = CliRunner().invoke(command, [*sides, *bar, "--json"])
    report = json.loads(done.stdout)
    assert report["text"]["scored_tokens"] == 2046
    assert report["perplexity"][0] == pytest.approx(12.38, abs=0.01)
    assert (done.exit_code, report["pass"]) == (0, True)
    assert 0 < report["kl_mean"] < 0.02
