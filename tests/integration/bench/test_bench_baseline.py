"""What the ladder holds the server against: the probe of the machine, and the naive way as a script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from hundredfold.bench.ceilings import Ceilings
from hundredfold.bench.ladder.naive import NaiveFailed, measure_naive
from hundredfold.bench.ladder.stages import QUICK, NaiveStage
from hundredfold_worker.bench import machine
from support.tiny_model import make_tiny_model

CEILINGS = Ceilings(1e12, {"fp32": 1e15})


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "TRY_S", 0.01)
    monkeypatch.setattr(machine, "SHAPES", ((16, 64, 64),))
    monkeypatch.setattr(machine, "READ_BYTES", 2**20)


def test_the_probe_measures_every_type(quick_probe: None, monkeypatch: pytest.MonkeyPatch):
    read = machine.read_bandwidth(2**20)
    assert read > 1e8
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        assert machine.products(dtype) > 0, dtype


def test_what_no_kernel_takes_has_no_ceiling(quick_probe: None, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("not on this processor")

    monkeypatch.setattr(machine, "_INT8", (refuse,))
    assert machine.products(torch.int8) == 0.0


def test_the_naive_way_is_measured(tmp_path: Path):
    pytest.importorskip("transformers")
    model = make_tiny_model(tmp_path / "tiny")
    stage = NaiveStage("naive-fp32", "generate", "fp32")
    row = measure_naive(stage, str(model), QUICK, Path(sys.executable), CEILINGS)
    assert row.tokens_per_s is not None
    assert row.tokens_per_s > 1
    assert row.ttft_ms is not None
    assert row.ms_per_token is not None
    assert row.peak_memory_bytes["transformers"] > 1e8
    assert row.read_share is not None
    assert 0 < row.read_share < 1


def test_an_interpreter_without_transformers_says_so(tmp_path: Path):
    model = make_tiny_model(tmp_path / "tiny")
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(NaiveFailed, match="No module named"):
        measure_naive(NaiveStage("n", "generate", "fp32"), str(model), QUICK, bare, None)
