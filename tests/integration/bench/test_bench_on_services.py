"""Ladder, bottleneck and tune on real services over a tiny model: they run, and their counts agree."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from hundredfold.bench.ladder import climb as climbing
from hundredfold.bench.ladder.climb import Climb, LadderOptions
from hundredfold.bench.ladder.rows import Row
from hundredfold.bench.ladder.stages import QUICK
from hundredfold.bench.neighbours import ask_loads, ask_neighbours
from hundredfold.bench.plan import LoadPlan
from hundredfold.bench.serve import measure
from hundredfold.bench.stack import StackError, StackOptions, known_settings, running_stack
from hundredfold.bench.watch import watch
from hundredfold.cli.bench_tune import tune
from support.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))


class Quiet:
    def total(self, rows: int) -> None: ...

    def begin(self, what: str, tokens: int) -> None: ...

    def tokens(self, done: int) -> None: ...

    def row(self, row: Row) -> None: ...


def no_machine() -> None:
    raise climbing.CeilingsError("not in a test")


@pytest.mark.timeout(600)
def test_a_ladder_of_real_services(model: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(climbing, "measure_ceilings", no_machine)
    only = frozenset({"engine", "batching", "replicas"})
    found = Climb(LadderOptions(model, QUICK, 5, baseline=False, only=only), Quiet()).run()
    single, some, many = found.rows[:3]
    for row in (single, some, many):
        assert row.reason == "", row
        assert row.tokens_per_s
        assert {"tokenizer", "scheduler", "worker"} <= row.peak_memory_bytes.keys()
        assert row.cpu_ms_per_token
    # One at a time a step brings one token; the one sent ahead of the last result brings none.
    assert single.tokens_per_step is not None
    assert QUICK.output_len / (QUICK.output_len + 1) - 1e-9 <= single.tokens_per_step <= 1.0
    assert some.tokens_per_step is not None
    assert many.tokens_per_step is not None
    assert 1.0 < some.tokens_per_step <= QUICK.some
    assert some.tokens_per_step < many.tokens_per_step <= QUICK.many
    assert found.notes == ["no shares of the machine's ceilings: not in a test"]


def test_services_that_do_not_start_say_why(model: str):
    wrong = StackOptions(model, {"worker.kv_cache_dtype": "nonsense"})
    with pytest.raises(StackError, match="nonsense"), running_stack(wrong):
        pytest.fail("it started")
    assert {"kv_cache_dtype", "max_num_seqs"} <= known_settings("worker")


def test_a_watched_server_tells_what_it_did(model: str):
    with running_stack(StackOptions(model, {"worker.max_num_seqs": "2"})) as stack:
        for _ in range(5):  # an account that does not come within seconds is left out
            neighbours = ask_neighbours(stack.address)
            if len(neighbours.services) == 3:
                break
        assert {info.service for info in neighbours.services} == {"tokenizer", "scheduler", "worker"}
        assert ask_loads(neighbours).unasked == {}
        plan = LoadPlan(
            stack.address, num_requests=200, input_len=8, output_len=40, concurrency=8, client_processes=1
        )
        loading = threading.Thread(target=measure, args=(plan, lambda _phase, _sent: None))
        loading.start()
        seen = watch(stack.address, 4.0, lambda _passed: None)
        loading.join()
    assert seen.seats == 2
    assert seen.steps > 0
    assert seen.output_tokens <= 2 * seen.steps
    assert 0 < seen.prefill_tokens < seen.computed_tokens
    assert 0 < seen.forward_s <= seen.step_s <= seen.seconds * 1.05
    assert seen.running > 0


def test_tune_prints_a_setting_that_keeps_the_target(model: str, tmp_path: Path):
    flags = ["--model", model, "--tpot-p99", "60s", "--max-seqs", "4", "--batched-tokens", "32"]
    done = CliRunner().invoke(tune, [*flags, "--input-len", "8", "--output-len", "8", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["best"]["seats"] == max(point["seats"] for point in told["points"])
    assert told["best"]["batched_tokens"] == 32
