"""Sweeps: axes from flags and presets, one plan a point, records in their form, a table that fits."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from rich.console import Console

from hundredfold.bench.plan import LoadPlan, PlanError
from hundredfold.bench.report import Environment, Report, RequestRecord, summarize
from hundredfold.bench.sweep import (
    SWEEPS,
    Point,
    SweepRecord,
    choose_axes,
    make_plans,
    parse_axes,
    record_of,
    refused,
    to_json,
)
from hundredfold.bench.sweep_table import bar, render_sweep

MIB = 2**20


def point(batch: int, *, tokens: int = 100, beams: int | None = None, error: str | None = None) -> Point:
    plan = LoadPlan(concurrency=batch, beam_width=beams)
    record = RequestRecord(0.0, 2.0, np.array([0.5, 1.0]), 1, tokens, 64, 0, tokens, error=error)
    report: Report = summarize(
        [record, record],
        mode="serve",
        environment=Environment(
            "cpu", "bf16", {"hundredfold": "1"}, {"worker": 300 * MIB, "scheduler": 50 * MIB}
        ),
        parameters=plan.parameters(),
        warnings=["mind the gap"],
    )
    return Point(plan, record_of(plan, report), report)


def shown(points: list[Point], width: int) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_sweep(points, width))
    return console.export_text()


def test_axes_are_read_in_order():
    axes = parse_axes(["beam-width=1,2", "concurrency=4,1"])
    assert list(axes.items()) == [("beam-width", (1, 2)), ("concurrency", (4, 1))]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["speed=1"], "'speed' cannot be swept, only concurrency, beam-width"),
        (["concurrency"], "wanted are whole numbers with commas, such as concurrency=1,2,4"),
        (["concurrency=1,x"], "wanted are whole numbers"),
        (["concurrency=1,1"], "a value stands there twice"),
        (["concurrency=1", "concurrency=2"], "concurrency is swept twice"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_named(texts: list[str], said: str):
    with pytest.raises(PlanError, match=said):
        parse_axes(texts)


def test_a_flag_is_given_or_swept():
    with pytest.raises(PlanError, match="--concurrency is given and swept"):
        choose_axes(None, ["concurrency=1,2"], {"concurrency": 4})
    assert choose_axes("batch", [], {"concurrency": 4}) == {}
    assert choose_axes("batch-and-beam", ["beam-width=3"], {}) == {
        "concurrency": SWEEPS["batch-and-beam"]["concurrency"],
        "beam-width": (3,),
    }
    assert choose_axes("single", [], {}) == {}


def test_every_point_has_a_plan_of_its_own():
    plans = make_plans(None, {"concurrency": (1, 16), "beam-width": (1, 2)}, {"output_len": 8, "rate": None})
    assert [(plan.concurrency, plan.beam_width) for plan in plans] == [(1, 1), (1, 2), (16, 1), (16, 2)]
    assert [plan.num_requests for plan in plans] == [8, 8, 64, 64]
    assert {plan.output_len for plan in plans} == {8}
    (single,) = make_plans("single", {"concurrency": (3,)}, {})
    assert (single.num_requests, single.concurrency) == (8, 3)


@pytest.mark.parametrize(
    ("axes", "given", "said"),
    [
        ({"beam-width": (1, 9)}, {}, "--beam-width is 9, it has to be from 1 to 8"),
        ({"beam-width": (2,)}, {"temperature": 0.5}, "--temperature does not go with --beam-width"),
        ({"concurrency": tuple(range(1, 66))}, {}, "65 points, the limit is 64"),
        ({"concurrency": (1,)}, {"rate": 2.0}, "not both"),
    ],
)
def test_bad_points_are_found_before_the_first_is_run(axes: dict, given: dict, said: str):
    with pytest.raises(PlanError, match=said):
        make_plans(None, axes, given)


def test_every_sweep_preset_can_be_run():
    for name, axes in SWEEPS.items():
        assert len(make_plans(name, axes, {})) == np.prod([len(values) for values in axes.values()])


def test_a_record_has_the_form():
    record = point(4, beams=2).record
    assert [field.name for field in fields(SweepRecord)] == [
        "device", "precision", "batch", "beam_width", "mean_latency_ms", "tokens_per_s", "peak_memory_bytes",
        "error",
    ]  # fmt: skip
    assert record == SweepRecord("cpu", "bf16", 4, 2, 2000.0, 100.0, 350 * MIB)


def test_failures_are_no_speed():
    record = point(4, error="UNIMPLEMENTED").record
    assert (record.tokens_per_s, record.mean_latency_ms) == (None, None)
    assert record.error.startswith("2 × UNIMPLEMENTED")


def test_json_has_a_record_and_a_report_for_each_point():
    plan = LoadPlan(concurrency=1, beam_width=4)
    data = json.loads(to_json([point(1), Point(plan, refused(plan, "no beams"), None)]))
    assert [record["batch"] for record in data["records"]] == [1, 1]
    assert data["records"][1]["error"] == "no beams"
    assert data["records"][1]["tokens_per_s"] is None
    assert data["reports"][0]["output_tokens_per_s"] == 100.0
    assert data["reports"][1] is None
    assert Report.from_json(json.dumps(data["reports"][0])).requests == 2


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits_and_shows_every_point(width: int):
    plan = LoadPlan(concurrency=64, beam_width=4, input_len=2048, output_len=2048)
    points = [
        point(1, beams=1),
        point(16, beams=1, tokens=123_400),
        point(4, beams=2, error="RESOURCE_EXHAUSTED"),
        Point(plan, refused(plan, "UNIMPLEMENTED: no beams"), None),
    ]
    lines = shown(points[:2], width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    first, second = (next(line for line in lines if f" {batch} " in line) for batch in (1, 16))
    assert "1.0" in first
    assert "123,400" in second
    assert "1,234" in second
    text = shown(points, width)
    for part in (
        "failed",
        "refused",
        "batch 64, beams of 4: UNIMPLEMENTED: no beams",
        "350 MiB",
        "mind the gap",
    ):
        assert part in text, part
    assert text.count("mind the gap") == 1


def test_bars_are_in_proportion():
    assert bar(1.0, 10) == "█" * 10
    assert bar(0.5, 10) == "█" * 5
    assert bar(0.0001, 10) == "▏"
    assert bar(0.0, 10) == ""
    assert bar(0.06, 10) == "▋"
    points = [point(1, tokens=100), point(2, tokens=200)]
    lines = shown(points, 120).splitlines()
    full = [line.count("█") for line in lines if "MiB" in line]
    assert full[1] == 2 * full[0] > 0


def test_an_open_loop_has_no_batch():
    plan = replace(LoadPlan(concurrency=1), concurrency=None, arrival="burst")
    assert refused(plan, "x").batch is None
