"""The ladder's arithmetic and its tables, from figures that are known."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hundredfold.bench.ceilings import Ceilings, keep, kept
from hundredfold.bench.ladder import climb as climbing
from hundredfold.bench.ladder.chart import ChartError, draw
from hundredfold.bench.ladder.climb import Climb, LadderOptions
from hundredfold.bench.ladder.measure import row_of, work_of
from hundredfold.bench.ladder.rows import Ladder, Row, Work
from hundredfold.bench.ladder.stages import FLOAT, QUICK, Load, Stage, merged, stages
from hundredfold.bench.ladder.table import markdown, render_ladder
from hundredfold.bench.neighbours import Loads, Neighbours
from hundredfold.bench.report import Environment, RequestRecord, summarize
from hundredfold.bench.stack import MAKE_UP, StackError
from hundredfold.v1.control_pb2 import GetLoadResponse, RuntimeInfo, ServiceInfo

CEILINGS = Ceilings(20e9, {"fp32": 100e9, "bf16": 50e9, "int8": 400e9}, 2, "AVX2")
SINGLE = Load("1 request", 1, 2, output_len=4, input_len=8)


def totals(**counts: int) -> GetLoadResponse:
    return GetLoadResponse(totals=counts)


def neighbours() -> Neighbours:
    runtime = RuntimeInfo(
        weight_bytes=1000, layer_weights=70, output_weights=30, bytes_per_block=320, block_size=32
    )
    return Neighbours("door", [ServiceInfo(service="worker", state="ready", runtime=runtime)])


def test_work_counts_weights_once_a_step_and_the_cache_of_every_token():
    before = Loads(workers=(totals(steps=10, computed_tokens=100, output_tokens=50),))
    after = Loads(workers=(totals(steps=18, computed_tokens=122, output_tokens=58),))
    work = work_of(neighbours(), before, after, SINGLE, seconds=2.0, cpu_seconds=3.0)
    assert (work.steps, work.tokens) == (8, 8)
    assert work.operations == 2 * (70 * 22 + 30 * 8)
    # 2 requests, 4 steps each, over 8 tokens of prompt and 2 more on average, 10 bytes a token.
    assert work.read_bytes == 8 * 1000 + 2 * 4 * (8 + 2) * 10


def test_a_step_of_several_tokens_reads_the_cache_once():
    before, after = Loads(), Loads(workers=(totals(steps=4, computed_tokens=22, output_tokens=8),))
    work = work_of(neighbours(), before, after, SINGLE, seconds=2.0, cpu_seconds=0.0)
    assert work.read_bytes == 4 * 1000 + 2 * 4 * (8 + 2) * 10 / 2


def test_shares_are_of_the_ceiling_of_the_arithmetic_in_use():
    work = Work(seconds=2.0, read_bytes=20e9, operations=80e9)
    assert work.read_share(CEILINGS) == 0.5
    assert work.operations_share(CEILINGS, "float") == 0.4
    assert work.operations_share(CEILINGS, "int8") == 0.1
    assert work.read_share(None) is None
    assert Work(seconds=2.0).operations_share(CEILINGS, "float") is None


def report(failures: int = 0):
    good = RequestRecord(0.0, 2.0, completion_tokens=4, received_tokens=4, prompt_tokens=8)
    bad = replace(good, error="INTERNAL", detail="lost", completion_tokens=0)
    records = [bad] * failures + [good] * (2 - failures)
    environment = Environment(peak_memory_bytes={"worker": 5, "scheduler": 2})
    return summarize(records, mode="serve", environment=environment, parameters={})


def test_a_row_has_the_reports_figures_and_the_work_behind_them():
    work = Work(2.0, 20e9, 80e9, cpu_seconds=0.4, steps=4, tokens=8)
    row = row_of(Stage("s", "S", ()), SINGLE, {}, "int8", CEILINGS, report(), work)
    assert row.tokens_per_s == 4.0
    assert row.cpu_ms_per_token == pytest.approx(50)
    assert row.tokens_per_step == 2.0
    assert (row.read_share, row.operations_share) == (0.5, 0.1)


def test_a_row_says_how_many_requests_failed_and_one_without_success_only_why():
    work = Work(2.0)
    some = row_of(Stage("s", "S", ()), SINGLE, {}, "float", None, report(1), work)
    assert some.tokens_per_s == 2.0
    assert "1 of 2 requests failed" in some.warnings
    none = row_of(Stage("s", "S", ()), SINGLE, {}, "float", None, report(2), work)
    assert none.tokens_per_s is None
    assert none.reason == "INTERNAL: lost"


def test_stages_build_on_those_before_unless_they_stand_alone():
    last = stages(QUICK)[-1]
    assert merged({"worker.a": "1", "worker.b": "1"}, Stage("s", "S", (), {"worker.b": "2"})) == {
        "worker.a": "1",
        "worker.b": "2",
    }
    assert merged({"worker.a": "1"}, last) == last.settings
    assert len({stage.key for stage in stages(QUICK)}) == len(stages(QUICK))


class Watching:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def total(self, rows: int) -> None:
        self.expected = rows

    def begin(self, what: str, tokens: int) -> None: ...

    def tokens(self, done: int) -> None: ...

    def row(self, row: Row) -> None:
        self.rows.append(row)


SPEEDS = {"engine": 10.0, "batching": 100.0, "int8-activations": 300.0, "int8-weights": 200.0}
KNOWN = frozenset({"activations", "quantization", "kv_cache_dtype"})


@pytest.fixture
def climb(monkeypatch: pytest.MonkeyPatch):
    """A ladder of known speeds; the int8 cache does not start on the stages before, nothing speculates."""
    asked: list[tuple[str, dict[str, str]]] = []

    def get(self, settings, workers):
        if settings.get("worker.kv_cache_dtype") == "int8" and "worker.activations" in settings:
            raise StackError("no such cache here")

    def measured(stack, stage, load, settings, arithmetic, ceilings, tick):
        asked.append((stage.key, dict(settings)))
        speed = SPEEDS.get(stage.key, 50.0)
        return Row(stage.key, stage.title, load.title, settings, tokens_per_s=speed, arithmetic=arithmetic)

    monkeypatch.setattr(climbing._Stacks, "get", get)
    monkeypatch.setattr(climbing, "measure_row", measured)
    monkeypatch.setattr(climbing, "measure_ceilings", lambda: CEILINGS)
    monkeypatch.setattr(climbing, "keep", lambda ceilings: None)
    monkeypatch.setattr(climbing, "known_settings", lambda service: KNOWN)
    monkeypatch.setattr(climbing, "usable_cores", lambda: 2)

    def run(minutes: float = 10, only: frozenset[str] = frozenset()):
        watching = Watching()
        found = Climb(LadderOptions("m", QUICK, minutes, baseline=False, only=only), watching).run()
        assert watching.rows == [replace(row, ratio=None) for row in found.rows]
        assert watching.expected == len(found.rows)
        return found, asked

    return run


def test_later_stages_take_over_the_fastest_settings(climb):
    found, asked = climb()
    settings = dict(asked)
    assert settings["int8-activations"]["worker.activations"] == "int8"
    assert settings["int8-weights"]["worker.quantization"] == "int8"
    assert settings["default"] == MAKE_UP
    cache = next(row for row in found.rows if row.stage == "int8-cache")
    assert cache.settings["worker.activations"] == "int8"
    assert cache.settings["worker.quantization"] == "auto", "the slower recipe is not built on"


def test_what_cannot_run_is_a_row_with_the_reason(climb):
    found, _ = climb()
    reasons = {row.stage: row.reason for row in found.rows}
    assert reasons["int8-cache"] == "no such cache here"
    assert reasons["speculation"] == "this installation has no setting worker.speculative"
    assert "needs 4 cores, here are 2" in reasons["replicas"]
    assert reasons["default"] == ""


def test_ratios_are_to_the_first_row_that_was_measured(climb):
    found, _ = climb()
    assert found.rows[0].ratio == 1.0
    assert next(row.ratio for row in found.rows if row.stage == "int8-activations") == 30.0
    assert found.best is not None
    assert found.best.stage == "int8-activations"


def test_loads_after_the_time_are_left_out(climb):
    found, asked = climb(minutes=0)
    assert asked == []
    assert {row.reason for row in found.rows if row.stage == "engine"} == {
        "not measured: the 0 minutes were over"
    }
    assert found.best is None


def test_only_the_stages_that_were_asked_for(climb):
    found, _ = climb(only=frozenset({"engine"}))
    assert [row.stage for row in found.rows] == ["engine"]


def test_a_stage_alone_stands_on_the_same_floats_as_in_a_whole_ladder(climb):
    _, whole = climb()
    _, asked = climb(only=frozenset({"batching"}))
    assert dict(asked)["batching"] == dict(whole)["batching"] == FLOAT


def ladder() -> Ladder:
    rows = [
        Row("naive-fp32", "transformers generate, fp32", "1 request", tokens_per_s=10.0, ratio=1.0),
        Row("batching", "+ batching", "4 at once", tokens_per_s=1234.5, ratio=123.45, read_share=0.5),
        Row("batching", "+ batching", "8 at once", tokens_per_s=400.0, ratio=40.0, arithmetic="int8"),
        Row("replicas", "+ a second worker", "8 at once", reason="needs 4 cores, here | are 2"),
    ]
    return Ladder("tiny", "a machine", CEILINGS, rows, 90.0, notes=("a note",))


def shown(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render_ladder(ladder(), width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_fits_its_terminal_and_says_everything(width: int):
    text = shown(width)
    assert max(map(len, text.splitlines())) <= width
    for part in ("1,234", "123", "transformers generate, fp32", "needs 4 cores", "a note", "20.0 GB/s"):
        assert part in text


def test_bars_are_shown_where_there_is_room():
    assert "█" in shown(140)
    assert "█" not in shown(80)


def test_markdown_has_a_line_for_each_row_and_escapes_bars():
    lines = markdown(ladder()).splitlines()
    assert len([line for line in lines if line.startswith("|")]) == 2 + 4
    assert lines[3].startswith("| + batching | 4 at once | 1,234 | 123 |")
    assert "here \\| are 2" in lines[5]
    assert all(line.replace("\\|", "").count("|") == 10 for line in lines[:6])


def test_json_reads_back():
    assert Ladder.from_json(ladder().to_json()).to_json() == ladder().to_json()
    assert json.loads(ladder().to_json())["rows"][1]["tokens_per_s"] == 1234.5
    with pytest.raises(ValueError, match="not a ladder"):
        Ladder.from_json("{}")


def test_the_chart_is_a_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    draw(ladder(), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ChartError, match="no row has figures"):
        draw(replace(ladder(), rows=()), tmp_path / "none.png")
    with pytest.raises(ChartError, match="nowhere"):
        draw(ladder(), tmp_path / "nowhere" / "chart.png")


def test_ceilings_are_kept_and_read_back(tmp_path: Path):
    path = tmp_path / "deep" / "machine.json"
    assert kept(path) is None
    keep(CEILINGS, path)
    assert kept(path) == CEILINGS
    path.write_text('{"read_bytes_per_s": "much"}')
    assert kept(path) is None
