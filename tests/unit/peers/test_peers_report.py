"""Peers: what their drivers say is understood, and the table tells medians, ratios and failures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from peers.driver import Answer, Driver, PeerFailed, parse
from peers.report import OURS, PeerReport, PeerRow, failures, markdown, render
from peers.roster import DRIVERS, Checkpoints, roster

DRIVER = """
import sys
sys.path.insert(0, {drivers!r})
from protocol import serve
print("a library says hello")
def run(prompts, output_len):
    if len(prompts) == 3:
        raise MemoryError("too many")
    if len(prompts) == 4:
        print("Error: the last word"); sys.stdout.flush()
        import os; os._exit(3)
    assert all(len(ids) == 5 for ids in prompts)
    return len(prompts) * output_len
serve(run, {{"toy": "1.0"}})
"""


@pytest.fixture
def driver(tmp_path: Path):
    script = tmp_path / "toy.py"
    script.write_text(DRIVER.format(drivers=str(DRIVERS)))
    running = Driver(Path(sys.executable), script, [], 20)
    yield running
    running.close()


def load(batch: int) -> dict[str, int]:
    return {"batch": batch, "input_len": 5, "output_len": 6, "top_id": 100}


def test_a_driver_answers_one_load_after_another(driver: Driver):
    assert driver.versions == {"toy": "1.0"}
    for batch in (1, 2):
        answer = driver.ask(load(batch), 20)
        assert answer.tokens == batch * 6
        assert answer.peak_bytes > 1e6


def test_a_load_that_fails_leaves_the_driver_alive(driver: Driver):
    with pytest.raises(PeerFailed, match="MemoryError: too many"):
        driver.ask(load(3), 20)
    assert driver.ask(load(1), 20).tokens == 6


def test_a_driver_that_dies_leaves_its_last_word(driver: Driver):
    with pytest.raises(PeerFailed, match="the last word"):
        driver.ask(load(4), 20)


def test_one_that_does_not_start_says_why(tmp_path: Path):
    script = tmp_path / "broken.py"
    script.write_text("raise ImportError('no such engine here')")
    with pytest.raises(PeerFailed, match="no such engine here"):
        Driver(Path(sys.executable), script, [], 20)


def test_only_marked_lines_are_read():
    assert parse("INFO loading\n") is None
    assert parse('PEER {"tokens": 3}\n') == {"tokens": 3}
    with pytest.raises(PeerFailed, match="out of memory"):
        parse('PEER {"failure": "out of memory"}')
    assert Answer(100, 4.0, 1).tokens_per_s == 25


def report() -> PeerReport:
    rows = [
        PeerRow("a", "engine A", {"a": "1"}, {1: [10.0, 12.0, 11.0], 64: [50.0]}),
        PeerRow("b", "engine B", failure="this processor has no AVX-512"),
        PeerRow("c", "engine C", {"c": "2"}, {1: [40.0]}, {64: "no answer within 600 s"}),
        PeerRow(OURS, "ours", {"hundredfold": "0"}, {1: [22.0, 22.0], 64: [200.0]}),
    ]
    return PeerReport(rows, (1, 64), "tiny", "a machine", 64, 128, 3)


def test_the_table_has_medians_and_ratios():
    table = markdown(report()).splitlines()
    assert table[2] == "| engine A | 11.0 | 2.00 | 50.0 | 4.00 |"
    assert table[3] == "| engine C | 40.0 | 0.55 | – | – |"
    assert table[4] == "| ours | 22.0 |  | 200 |  |"


def test_what_could_not_run_has_a_line_each():
    assert failures(report()) == [
        "engine B could not run: this processor has no AVX-512",
        "engine C, 64 at once: no answer within 600 s",
    ]
    assert all(line in markdown(report()) for line in failures(report()))


def test_the_spread_is_the_largest_distance_from_the_median():
    assert report().rows[0].spread == pytest.approx(1 / 11)
    assert report().rows[2].spread is None


def test_json_has_every_run():
    told = json.loads(report().to_json())
    assert told["rows"][0]["runs"]["1"] == [10.0, 12.0, 11.0]
    assert told["rows"][0]["ours_by_it"]["64"] == 4.0


def test_the_table_is_shown():
    console = Console(width=120, record=True, quiet=True)
    console.print(render(report()))


def test_every_peer_has_a_driver_and_a_key_of_its_own():
    peers = roster()
    assert len({peer.key for peer in peers}) == len(peers)
    model = Checkpoints(Path("m.gguf"), Path("dense"), Path("w8a8"))
    for peer in peers:
        assert (DRIVERS / peer.script).is_file()
        assert peer.arguments(model)
