"""``hundredfold bench offline`` as a command: one JSON object on standard output, logs elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys

from hundredfold.bench.report import Report

OFFLINE = [sys.executable, "-c", "from hundredfold_worker.bench import command; command()"]


def test_json_report(tiny_checkpoint: str) -> None:
    flags = "--concurrency 4 --num-requests 9 --input-len 20 --output-len 10 --raw --json --num-threads 1"
    done = subprocess.run(
        [*OFFLINE, *flags.split(), "--model", tiny_checkpoint, "--dtype", "fp32"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = Report.from_json(done.stdout)
    assert (report.mode, report.requests, report.failed) == ("offline", 9, 0)
    assert (report.input_tokens, report.output_tokens) == (180, 90)
    assert report.output_tokens_per_s > 0
    for name in ("latency_ms", "ttft_ms", "tpot_ms", "itl_ms"):
        assert set(json.loads(done.stdout)[name]) == {"mean", "p50", "p90", "p99"}
        assert getattr(report, name).mean > 0
    assert report.peak_memory_bytes["worker"] > 100 << 20
    assert "fp32" in report.precision
    assert report.versions["torch"]
    assert report.client["steps"] >= 30
    assert report.client["raw_output_tokens_per_s"] > report.output_tokens_per_s * 0.5
    parts = [v for k, v in report.client.items() if k.startswith("step_") and k != "step_ms"]
    assert abs(sum(parts) - report.client["step_ms"]) < 0.01 * report.client["step_ms"] + 0.01


def test_a_load_that_does_not_fit(tiny_checkpoint: str) -> None:
    flags = "--concurrency 4 --input-len 2000 --output-len 100 --num-kv-blocks 64 --no-warm-up"
    done = subprocess.run(
        [*OFFLINE, *flags.split(), "--model", tiny_checkpoint], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "max_model_len 2048" in done.stderr
    assert "Traceback" not in done.stderr
