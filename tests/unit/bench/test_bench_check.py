"""Stored ratios: what counts as worse, and where they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hundredfold.bench.check import CheckError, Stored, judge, kind_of_machine, ratios, read, write
from hundredfold.bench.check_run import PAIRS
from hundredfold.cli import bench_check
from support.repo import ROOT

COMMITTED = ROOT / "tests" / "speed.json"


def test_ratios_are_medians_over_the_rounds():
    rounds = [{"a": 10.0, "b": 5.0}, {"a": 30.0, "b": 10.0}, {"a": 8.0, "b": 1.0}]
    assert ratios(rounds, {"a by b": ("a", "b")}) == {"a by b": 3.0}
    with pytest.raises(CheckError, match="a by c: no round measured both sides"):
        ratios(rounds, {"a by c": ("a", "c")})


@pytest.mark.parametrize(
    ("measured", "status"),
    [(0.79, "worse"), (0.81, "ok"), (1.0, "ok"), (1.19, "ok"), (1.21, "better")],
)
def test_a_ratio_is_worse_only_below_its_bound(measured: float, status: str):
    assert judge({"x": measured}, {"x": Stored(1.0, 0.2)})[0].status == status


def test_a_ratio_without_a_stored_one_is_new():
    assert judge({"x": 1.0}, {})[0].status == "new"


def test_kinds_of_machine_are_kept_apart(tmp_path: Path):
    path = tmp_path / "ratios.json"
    assert read(path, "avx2, 2 cores") == {}
    write(path, "avx2, 2 cores", judge({"x": 2.0}, {}))
    write(path, "portable, 1 cores", judge({"x": 3.0}, {"x": Stored(1.0, 0.5)}))
    assert read(path, "avx2, 2 cores") == {"x": Stored(2.0)}
    assert read(path, "portable, 1 cores") == {"x": Stored(3.0, 0.5)}, "a bound outlives its value"
    path.write_text('{"avx2": {"x": {"worth": 1}}}')
    with pytest.raises(CheckError, match="holds no ratios"):
        read(path, "avx2")


def test_the_kind_is_the_best_instruction_set(tmp_path: Path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : sse avx2 avx512f avx512_vnni\n")
    assert kind_of_machine(cpuinfo).startswith("avx512_vnni, ")
    cpuinfo.write_text("flags : sse avx2\n")
    assert kind_of_machine(cpuinfo).startswith("avx2, ")
    assert kind_of_machine(tmp_path / "none").startswith("portable, ")


@pytest.mark.parametrize(("many", "code"), [(40.0, 0), (10.0, 1)])
def test_the_command_fails_when_a_ratio_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: float, code: int
):
    speeds = {"single": 10.0, "many": 40.0, "float": 20.0, "offline": 42.0}
    path = tmp_path / "ratios.json"
    monkeypatch.setattr(bench_check, "measure_round", lambda model, say: speeds)
    stored = CliRunner().invoke(bench_check.check, ["--ratios", str(path), "--update"])
    assert stored.exit_code == 0, stored.output
    assert set(read(path, kind_of_machine())) == set(PAIRS)
    monkeypatch.setattr(bench_check, "measure_round", lambda model, say: {**speeds, "many": many})
    done = CliRunner().invoke(bench_check.check, ["--ratios", str(path)])
    assert done.exit_code == code, done.output
    assert ("worse" in done.output) == bool(code)


def test_what_cannot_be_compared_or_stored_is_told_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bench_check, "measure_round", lambda model, say: pytest.fail("measured"))
    missing = CliRunner().invoke(bench_check.check, ["--ratios", str(tmp_path / "none.json")])
    assert missing.exit_code == 1
    assert "none.json is not there; --update stores" in missing.output
    nowhere = CliRunner().invoke(bench_check.check, ["--ratios", str(tmp_path / "no" / "r.json"), "--update"])
    assert nowhere.exit_code == 1
    assert "no directory" in nowhere.output


def test_the_committed_ratios_are_those_that_are_measured():
    for kind in ("avx2, 2 cores",):
        assert set(read(COMMITTED, kind)) <= set(PAIRS)
