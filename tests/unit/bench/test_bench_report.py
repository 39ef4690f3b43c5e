"""The figures of a report, against values worked out by hand."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from hundredfold.bench.report import Distribution, Environment, Report, RequestRecord, summarize


def record(start: float, times: list[float], tokens_per_event: int = 1, **changes) -> RequestRecord:
    tokens = tokens_per_event * len(times)
    made = RequestRecord(
        start=start,
        end=times[-1] if times else start,
        event_times=np.array(times),
        first_event_tokens=tokens_per_event,
        received_tokens=tokens,
        prompt_tokens=10,
        completion_tokens=tokens,
    )
    return replace(made, **changes)


def report(records, **more) -> Report:
    return summarize(records, mode="serve", environment=Environment(), parameters={}, **more)


def test_distribution_interpolates_percentiles():
    found = Distribution.of_seconds([0.001 * n for n in range(1, 101)])
    assert found.mean == pytest.approx(50.5)
    assert found.p50 == pytest.approx(50.5)
    assert found.p90 == pytest.approx(90.1)
    assert found.p99 == pytest.approx(99.01)


def test_three_tokens_every_30_ms_are_a_gap_of_30_and_10_a_token():
    found = report([record(0.0, [0.1 + 0.03 * n for n in range(11)], tokens_per_event=3)])
    assert found.itl_ms.mean == pytest.approx(30)
    assert found.tpot_ms.mean == pytest.approx(10)
    assert found.ttft_ms.mean == pytest.approx(100)


def test_gaps_are_pooled_over_requests_and_tpot_is_one_value_a_request():
    slow = record(0.0, [0.1, 0.3])
    fast = record(0.0, [0.1, 0.11, 0.12, 0.13])
    found = report([slow, fast])
    assert found.itl_ms.mean == pytest.approx((200 + 10 + 10 + 10) / 4)
    assert found.tpot_ms.mean == pytest.approx((200 + 10) / 2)


def test_window_runs_from_first_start_to_last_end_and_failures_are_inside():
    good = record(10.0, [10.5, 11.0])
    refused = record(9.0, [], error="RESOURCE_EXHAUSTED", detail="queue full", end=9.01)
    late = record(12.0, [], error="UNAVAILABLE", end=14.0)
    found = report([good, refused, late])
    assert found.duration_s == pytest.approx(5.0)
    assert found.requests == 3
    assert found.failed == 2
    assert found.failures == {"RESOURCE_EXHAUSTED": 1, "UNAVAILABLE": 1}
    assert found.failure_examples == ["RESOURCE_EXHAUSTED: queue full", "UNAVAILABLE"]
    assert found.output_tokens_per_s == pytest.approx(2 / 5)
    assert found.requests_per_s == pytest.approx(1 / 5)


def test_failed_requests_are_in_no_distribution_and_no_token_count():
    good = record(0.0, [0.1, 0.2])
    broken = record(0.0, [5.0, 9.0], error="INTERNAL")
    found = report([good, broken])
    assert found.ttft_ms.p99 == pytest.approx(100)
    assert found.itl_ms.p99 == pytest.approx(100)
    assert found.latency_ms.p99 == pytest.approx(200)
    assert found.output_tokens == 2


def test_first_token_counts_from_when_the_request_was_due():
    assert report([record(start=2.0, times=[7.0])]).ttft_ms.mean == pytest.approx(5000)


def test_one_token_has_no_tpot_and_no_gap_and_json_says_null():
    found = report([record(0.0, [0.1])])
    assert found.tpot_ms == Distribution()
    assert json.loads(found.to_json())["itl_ms"] == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_disagreement_between_delivered_and_counted_tokens_is_told():
    found = report([record(0.0, [0.1, 0.2], completion_tokens=5), record(0.0, [0.1])])
    assert found.count_mismatches == 1
    assert found.output_tokens == 6  # the server's count
    assert any("1 requests delivered another number" in line for line in found.warnings)


def test_cached_share_is_of_prompt_tokens():
    assert report([record(0.0, [0.1], cached_tokens=5), record(0.0, [0.1])]).cached_tokens_share == 0.25


def test_all_failed_is_still_a_report():
    found = report([record(0.0, [], error="UNAVAILABLE", end=1.0)])
    assert found.output_tokens_per_s == 0
    assert json.loads(found.to_json())["ttft_ms"]["mean"] is None


def test_json_has_exactly_the_documented_keys_and_comes_back():
    found = report([record(0.0, [0.1, 0.2])], client={"processes": 1}, warnings=["look"])
    data = json.loads(found.to_json())
    assert set(data) == {item.name for item in fields(Report)}
    assert {
        "output_tokens_per_s", "requests_per_s", "requests", "failed", "latency_ms", "ttft_ms", "tpot_ms",
        "itl_ms", "peak_memory_bytes", "device", "precision", "versions",
    } <= set(data)  # fmt: skip
    assert set(data["ttft_ms"]) == {"mean", "p50", "p90", "p99"}
    assert Report.from_json(found.to_json()) == found


@pytest.mark.parametrize("text", ["[]", "{}", '{"mode": "serve"}'])
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match="report"):
        Report.from_json(text)


def test_no_record_is_refused():
    with pytest.raises(ValueError, match="no request"):
        report([])
