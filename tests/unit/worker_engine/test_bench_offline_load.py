"""The static planner of bench offline: every request is run to its end, within the engine's limits."""

from __future__ import annotations

import numpy as np
import pytest

from hundredfold.errors import StartError
from hundredfold_worker.bench.load import Load, StaticPlanner
from hundredfold_worker.bench.offline import _figures, _records
from hundredfold_worker.bench.raw import RecordingModel, replay
from hundredfold_worker.engine.engine import Engine
from support.toy_model import ToyModel


@pytest.mark.parametrize("load", [Load(1, 1, 5, 1, 0), Load(20, 6, 33, 9, 0), Load(7, 8, 100, 20, 1)])
def test_every_request_is_served(make_driver, load: Load) -> None:
    engine: Engine = make_driver(max_num_batched_tokens=64).engine
    record = StaticPlanner(engine, load).run()
    assert np.isfinite(record.tokens).all()
    assert (np.diff(record.tokens, axis=1) > 0).all()
    assert (record.tokens[:, 0] > record.started).all()
    assert not record.failures
    assert engine.totals.output_tokens == load.num_requests * load.output_len
    figures = _figures(engine.times, record, load)
    parts = [v for k, v in figures.items() if k.startswith("step_") and k != "step_ms"]
    assert sum(parts) == pytest.approx(figures["step_ms"])
    records = _records(record, load)
    assert all(r.completion_tokens == load.output_len and r.error is None for r in records)


def test_a_load_that_does_not_fit_is_refused(make_driver) -> None:
    engine: Engine = make_driver().engine
    for load, told in (
        (Load(9, 9, 5, 5, 0), "max_num_seqs 8"),
        (Load(1, 1, 200, 100, 0), "max_model_len 256"),
    ):
        with pytest.raises(StartError, match=told):
            StaticPlanner(engine, load)


def test_failures_are_counted(make_driver) -> None:
    def poison(ids, logits) -> None:
        if len(ids) == 2:
            logits[1] = float("nan")

    engine: Engine = make_driver(ToyModel(tamper=poison)).engine
    load = Load(6, 2, 4, 5, 0)
    record = StaticPlanner(engine, load).run()
    assert record.failures
    failed = [r for r in _records(record, load) if r.error == "INTERNAL"]
    assert len(failed) == len(record.failures)
    assert "non-finite" in failed[0].detail


def test_the_raw_loop_repeats_every_batch(make_driver) -> None:
    toy = ToyModel()
    recording = RecordingModel(toy, recording=True)
    engine: Engine = make_driver(recording).engine
    StaticPlanner(engine, Load(4, 2, 8, 6, 0)).run()
    ran = toy.forwards
    assert len(recording.batches) == ran
    assert replay(recording) > 0
    assert toy.forwards == 2 * ran
