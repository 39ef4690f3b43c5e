"""What binds a server is told from counters of servers that are bound by one thing each."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from hundredfold.bench.bottleneck import Observation, diagnose
from hundredfold.bench.ceilings import Ceilings
from hundredfold.bench.neighbours import Loads, Neighbours
from hundredfold.bench.watch import arithmetic_of, observe
from hundredfold.cli.bench_bottleneck import render_findings
from hundredfold.v1.control_pb2 import (
    BlockCounts,
    GetLoadResponse,
    RuntimeInfo,
    Selection,
    ServiceInfo,
    WorkerLoad,
)

CEILINGS = Ceilings(10e9, {"fp32": 100e9, "int8": 300e9})

BUSY = Observation(
    seconds=10.0,
    running=32.0,
    waiting=0.0,
    seats=256,
    cache_usage=0.3,
    steps=100,
    computed_tokens=3200,
    prefill_tokens=100,
    output_tokens=3100,
    recomputed_tokens=0,
    preemptions=0,
    step_s=9.8,
    forward_s=9.5,
    sample_s=0.2,
    gap_s=0.2,
    unread_bytes=0,
    weight_bytes=100_000_000,
    layer_weights=10_000_000,
    output_weights=3_000_000,
)
"""A server whose workers compute all the time, near neither ceiling: 1.05 GB/s and 8.7 Gop/s."""


def binds(seen: Observation, ceilings: Ceilings | None = CEILINGS) -> str:
    return diagnose(seen, ceilings)[0].name


def test_nothing_binds_an_idle_server():
    assert binds(replace(BUSY, running=0.0)) == "idle"
    assert binds(replace(BUSY, steps=0, running=3.0)) == "idle"


def test_steps_near_neither_ceiling_are_the_kernels():
    assert binds(BUSY) == "kernels"


def test_bandwidth_binds_where_few_tokens_read_all_weights():
    seen = replace(BUSY, weight_bytes=800_000_000)
    found = diagnose(seen, CEILINGS)[0]
    assert found.name == "bandwidth"
    assert "84% of the memory bandwidth" in found.evidence
    assert "quantization" in found.advice


def test_arithmetic_binds_where_many_tokens_share_them():
    seen = replace(BUSY, computed_tokens=32_000, running=250.0)
    assert binds(seen) == "arithmetic"
    assert binds(replace(seen, arithmetic="int8")) == "kernels", "the ceiling of integers is three times that"


def test_without_ceilings_it_says_how_to_get_them():
    found = diagnose(BUSY, None)[0]
    assert found.name == "kernels"
    assert "bench ladder" in found.advice


def test_the_queue_binds_when_every_seat_is_taken():
    found = diagnose(replace(BUSY, running=8.0, seats=8, waiting=40.0), CEILINGS)[0]
    assert found.name == "queue"
    assert "all 8 seats" in found.evidence
    assert "max_num_seqs" in found.advice


def test_the_cache_binds_when_sequences_are_put_aside():
    seen = replace(BUSY, preemptions=5, recomputed_tokens=2000, cache_usage=1.0, waiting=40.0)
    found = diagnose(seen, CEILINGS)[0]
    assert found.name == "cache"
    assert "62% of the computed tokens" in found.evidence
    assert "kv_cache_dtype" in found.advice


def test_prompts_bind_when_most_of_a_step_is_theirs():
    seen = replace(BUSY, computed_tokens=3200, prefill_tokens=2900)
    assert binds(seen) == "prefill"
    assert "step_target_ms" in diagnose(seen, CEILINGS)[0].advice


def test_delivery_binds_when_workers_wait_though_requests_run():
    seen = replace(BUSY, step_s=4.0, forward_s=3.8, gap_s=6.0, unread_bytes=4096)
    found = diagnose(seen, CEILINGS)[0]
    assert found.name == "delivery"
    assert "waited 60%" in found.evidence
    assert "4 KiB" in found.evidence


def test_sampling_binds_when_it_takes_most_of_a_step():
    assert binds(replace(BUSY, forward_s=3.0, sample_s=6.5)) == "sampling"


@pytest.mark.parametrize("seen", [BUSY, replace(BUSY, step_s=1.0), replace(BUSY, seats=8, waiting=9.0)])
def test_findings_are_ordered_and_weigh_at_most_the_whole(seen: Observation):
    weights = [finding.weight for finding in diagnose(seen, CEILINGS)]
    assert weights == sorted(weights, reverse=True)
    assert all(0 <= weight <= 1 for weight in weights)


def look(steps: int, running: int, used: int) -> Loads:
    blocks = BlockCounts(used=used, total=100)
    scheduler = GetLoadResponse(
        running=running,
        waiting=2,
        cache_usage=used / 100,
        blocks=blocks,
        totals={"computed_tokens": 10 * steps, "prefill_tokens": steps, "output_tokens": 9 * steps},
        workers=[WorkerLoad(seats=8), WorkerLoad(seats=4)],
    )
    worker = GetLoadResponse(
        totals={"steps": steps, "step_total_us": 5000 * steps, "step_gap_us": 100 * steps}
    )
    return Loads(door=GetLoadResponse(totals={"unread_bytes": 7}), scheduler=scheduler, workers=(worker,))


def test_looks_are_put_together():
    runtime = RuntimeInfo(weight_bytes=5, bytes_per_block=10)
    info = ServiceInfo(service="worker", state="ready", runtime=runtime)
    info.settings["max_num_batched_tokens"] = "512"
    seen = observe(Neighbours("door", [info]), [look(100, 2, 10), look(150, 4, 30)], 2.0)
    assert (seen.steps, seen.computed_tokens, seen.prefill_tokens, seen.output_tokens) == (50, 500, 50, 450)
    assert (seen.running, seen.waiting, seen.seats) == (3.0, 2.0, 12)
    assert seen.step_s == pytest.approx(0.25)
    assert seen.gap_s == pytest.approx(0.005)
    assert seen.busy == pytest.approx(0.125)
    assert (seen.cache_usage, seen.cache_bytes) == (0.3, 200.0)
    assert (seen.unread_bytes, seen.weight_bytes, seen.max_num_batched_tokens) == (7, 5, 512)


def test_a_worker_tells_its_arithmetic():
    integers = RuntimeInfo(selections=[Selection(subject="activations", chosen="int8 for 210 layers")])
    cache = RuntimeInfo(selections=[Selection(subject="kv_cache", chosen="int8")])
    assert arithmetic_of(integers) == "int8"
    assert arithmetic_of(cache) == "float"


def test_the_panel_shows_what_binds_first():
    out = io.StringIO()
    seen = replace(BUSY, running=8.0, seats=8, waiting=40.0)
    Console(file=out, width=100).print(render_findings(diagnose(seen, CEILINGS), seen, "here:1"))
    text = out.getvalue()
    assert text.index("queue") < text.index("kernels")
    assert "max_num_seqs" in text
    assert max(map(len, text.splitlines())) <= 100
