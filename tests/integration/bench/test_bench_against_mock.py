"""The load tool against a mock door whose speed is known: real gRPC, real client processes.

The mock keeps an exact schedule, two shared cores do not. So the figures have to agree within
3 % in one of three attempts, and the 10,000 tokens/s over 256 streams come four to an event: one to an event
takes more than two cores, client and mock together.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hundredfold.bench.mock import PEAK_BYTES, MockSpeed
from hundredfold.bench.plan import PlanError, make_plan
from hundredfold.bench.report import Report
from hundredfold.bench.serve import WarmupError, measure
from hundredfold.bench.server import ServerError
from support.pace import in_time

WITHIN = 0.03
BENCH = [sys.executable, "-c", "from hundredfold.cli.bench import command; command()"]


@contextlib.contextmanager
def mock_door(speed: MockSpeed) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the mock as a process of its own and yield its address."""
    code = (
        "from hundredfold.bench.mock import MockSpeed, serve_mock\n"
        "from hundredfold.rpc import run_loop\n"
        f"run_loop(serve_mock('127.0.0.1:0', {speed!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.terminate()


def run(address: str, **given: object) -> Report:
    return measure(make_plan(None, {"address": address, **given}), lambda phase, sent: None)


def within(attempt: Callable[[], dict[str, tuple[float | None, float]]]) -> None:
    """Let every (reported, true) pair of one of three attempts agree."""
    for _ in range(3):
        found = attempt()
        wrong = {
            name: pair
            for name, pair in found.items()
            if pair[0] is None or abs(pair[0] / pair[1] - 1) > WITHIN
        }
        if not wrong:
            return
    pytest.fail(f"(reported, true): {wrong}")


@pytest.mark.alone
def test_closed_loop_reports_a_known_10000_tokens_a_second_over_256_streams():
    speed = MockSpeed(first_token_s=0.5, event_interval_s=0.1024, tokens_per_event=4)
    streams, length = 256, 400
    decode_s = (length / 4 - 1) * speed.event_interval_s
    wave_s = speed.first_token_s + decode_s

    def attempt():
        found = run(address, concurrency=streams, num_requests=streams, output_len=length, warmup=16)
        assert (found.failed, found.count_mismatches) == (0, 0)
        assert found.output_tokens == streams * length
        assert found.input_tokens == streams * 64
        return {
            "output_tokens_per_s": (found.output_tokens_per_s, streams * length / wave_s),
            "requests_per_s": (found.requests_per_s, streams / wave_s),
            "latency_ms": (found.latency_ms.p50, wave_s * 1e3),
            "itl_ms": (found.itl_ms.mean, speed.event_interval_s * 1e3),
            "tpot_ms": (found.tpot_ms.mean, decode_s / (length - 4) * 1e3),
        }

    with mock_door(speed) as (address, _):
        within(attempt)


@pytest.mark.alone
def test_open_loop_reports_a_known_time_to_first_token():
    speed = MockSpeed(first_token_s=0.4, event_interval_s=0.02)

    def attempt():
        found = run(address, rate=30.0, num_requests=75, output_len=20, warmup=4, client_processes=2)
        assert found.failed == 0
        assert found.client["processes"] == 2
        return {
            "ttft_ms": (found.ttft_ms.mean, 400),
            "tpot_ms": (found.tpot_ms.mean, 20),
            "latency_ms": (found.latency_ms.mean, 400 + 19 * 20),
        }

    with mock_door(speed) as (address, _):
        within(attempt)


@pytest.mark.alone
def test_a_stall_of_the_server_is_charged_to_every_request_due_in_it():
    """Coordinated omission: 20 requests are due each second, also while the server stands still for one."""
    with mock_door(MockSpeed(first_token_s=0.02, event_interval_s=0.01)) as (address, process):
        measuring = threading.Event()

        def stall() -> None:
            measuring.wait(30)
            time.sleep(1.0)
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.0)
            process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=stall)
        thread.start()
        plan = make_plan(None, {"address": address, "rate": 20.0, "num_requests": 60, "output_len": 2})
        found = measure(plan, lambda phase, sent: measuring.set() if phase == "measuring" else None)
        thread.join()
    assert found.failed == 0
    assert found.duration_s > 2.0
    in_time(found.duration_s, 4.0, "three seconds of arrivals")  # they went on meanwhile
    assert found.ttft_ms.p99 > 700
    assert found.ttft_ms.p90 > 300  # a tenth or more were due in the first 0.7 s of the stall
    assert found.ttft_ms.mean > 100


def test_failures_are_counted_by_status_and_kept_out_of_the_figures():
    speed = MockSpeed(first_token_s=0.05, event_interval_s=0.005, fail_every=5, break_every=7)
    with mock_door(speed) as (address, _):
        found = run(address, concurrency=4, num_requests=35, output_len=8, warmup=0)
    refused, broken = 35 // 5, 35 // 7 - 1  # the 35th is refused, not broken
    assert found.requests == 35
    assert found.failed == refused + broken
    assert found.failures == {"INCOMPLETE": broken, "RESOURCE_EXHAUSTED": refused}
    assert any("queue of 0 requests is full" in line for line in found.failure_examples)
    assert found.output_tokens == (35 - refused - broken) * 8
    assert found.latency_ms.p50 > 50  # refusals came back at once


def test_what_the_server_says_of_itself_is_in_the_report():
    with mock_door(MockSpeed(first_token_s=0.01, event_interval_s=0.001, cached_tokens=16)) as (address, _):
        found = run(address, concurrency=2, num_requests=4, output_len=4, shared_prefix=32)
    assert found.peak_memory_bytes == PEAK_BYTES
    assert (found.device, found.precision) == ("mock", "bf16, quantization none, kv_cache bf16")
    assert found.versions["mock"] == "1.0"
    assert found.cached_tokens_share == 16 / 64
    assert found.server_queue_ms.mean == pytest.approx(1.0)


def test_a_server_that_miscounts_is_found_out():
    with mock_door(MockSpeed(first_token_s=0.01, event_interval_s=0.001, overcount=1)) as (address, _):
        found = run(address, concurrency=2, num_requests=4, output_len=4, warmup=0)
    assert found.count_mismatches == 4
    assert any("another number of token ids" in line for line in found.warnings)
    assert any("--output-len 4" in line for line in found.warnings)


def test_text_prompts_go_as_text(tmp_path):
    (tmp_path / "prompts.txt").write_text("one two three\nfour five\n")
    with mock_door(MockSpeed(first_token_s=0.01, event_interval_s=0.001)) as (address, _):
        found = run(
            address, concurrency=1, num_requests=4, output_len=2, warmup=0, prompts=tmp_path / "prompts.txt"
        )
    assert found.input_tokens == 2 * (3 + 2)
    assert found.repeated_prompts_share == 0.5


def test_lengths_beyond_the_model_are_refused_before_any_request():
    with (
        mock_door(MockSpeed(max_model_len=100)) as (address, _),
        pytest.raises(PlanError, match="at most 100"),
    ):
        run(address, concurrency=1, input_len=64, output_len=64)


def test_nothing_is_measured_when_the_warmup_fails():
    with mock_door(MockSpeed(fail_every=1)) as (address, _), pytest.raises(WarmupError, match="RESOURCE_EX"):
        run(address, concurrency=1)


def test_no_server_is_said_plainly():
    with pytest.raises(ServerError, match="answered UNAVAILABLE"):
        run("127.0.0.1:1", concurrency=1)


def test_command_prints_one_json_object_and_compares_two(tmp_path):
    with mock_door(MockSpeed(first_token_s=0.01, event_interval_s=0.002)) as (address, _):
        flags = [
            "--address",
            address,
            "--preset",
            "single",
            "--num-requests",
            "3",
            "--output-len",
            "4",
            "--json",
        ]
        done = subprocess.run([*BENCH, "serve", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["requests"], data["parameters"]["concurrency"], data["output_tokens"]) == (3, 1, 12)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(done.stdout)
    compared = subprocess.run(
        [*BENCH, "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert compared.returncode == 0, compared.stderr
    assert "1.000" in compared.stdout


def test_command_says_what_is_wrong_and_exits_non_zero():
    bad = subprocess.run([*BENCH, "serve", "--concurrency", "0"], capture_output=True, text=True, timeout=60)
    assert bad.returncode == 2
    assert "--concurrency is 0, it has to be from 1 to 10000" in bad.stderr
    none = subprocess.run(
        [*BENCH, "serve", "--address", "127.0.0.1:1"], capture_output=True, text=True, timeout=60
    )
    assert none.returncode == 1
    assert "UNAVAILABLE" in none.stderr
    assert none.stdout == ""


def test_a_sweep_measures_each_point_and_tells_of_a_refused_one():
    """Batch and beams against a door that serves beams of 2 at most."""
    speed = MockSpeed(first_token_s=0.05, event_interval_s=0.01, max_beam_width=2)
    with mock_door(speed) as (address, _):
        command = [*BENCH, "serve", "--address", address, "--output-len", "8", "--num-requests", "8"]
        sweep = ["--sweep", "concurrency=1,4", "--sweep", "beam-width=1,4"]
        done = subprocess.run([*command, *sweep, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    records = data["records"]
    assert [(record["batch"], record["beam_width"]) for record in records] == [(1, 1), (1, 4), (4, 1), (4, 4)]
    for record in records[::2]:
        assert record["error"] == ""
        assert record["peak_memory_bytes"] == sum(PEAK_BYTES.values())
        assert (record["device"], record["precision"]) == ("mock", "bf16, quantization none, kv_cache bf16")
        assert record["mean_latency_ms"] >= 120
    for record in records[1::2]:
        assert "UNIMPLEMENTED: sampling.beam_width is not supported" in record["error"]
        assert record["tokens_per_s"] is None
    in_time(
        2 * records[0]["tokens_per_s"] / records[2]["tokens_per_s"], 1, "half of four at once, against one,"
    )
    assert [report is None for report in data["reports"]] == [False, True, False, True]


def test_a_sweep_of_which_nothing_is_served_fails():
    with mock_door(MockSpeed(max_beam_width=0)) as (address, _):
        command = [*BENCH, "serve", "--address", address, "--preset", "beam", "--output-len", "4"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout.count("refused") == 4
    assert "UNIMPLEMENTED" in done.stdout
