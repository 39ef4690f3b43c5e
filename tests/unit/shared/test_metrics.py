"""Metrics as Prometheus shows them: names, edges, labels."""

from __future__ import annotations

from typing import ClassVar

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hundredfold.config import ServiceSettings
from hundredfold.telemetry import FinishedRequest, LoadSample, ServiceMetrics


class Demo(ServiceSettings):
    """Demo."""

    config_section: ClassVar[str] = "scheduler"
    listen: tuple[str, ...] = ("unix:/tmp/none.sock", "127.0.0.1:1")


def samples(metrics: ServiceMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    scrape = metrics._scrape
    assert scrape is not None
    registry: CollectorRegistry = scrape.registry
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if not k.startswith("otel_")))): (
            sample.value
        )
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def total(found: dict[tuple[str, tuple[tuple[str, str], ...]], float], name: str) -> float:
    return sum(value for (sample, _), value in found.items() if sample == name)


@pytest.fixture
def metrics() -> ServiceMetrics:
    return ServiceMetrics("scheduler", Demo(metrics_port=1))


def test_a_finished_request_feeds_every_histogram(metrics: ServiceMetrics) -> None:
    metrics.finished(
        FinishedRequest(
            "m", "chat", 1.0, prompt_tokens=10, output_tokens=5, cached_tokens=4, time_to_first_token_s=0.2
        )
    )
    metrics.finished(FinishedRequest("m", "chat", 0.5, 3, 1, time_to_first_token_s=0.5, queue_s=0.003))
    metrics.finished(FinishedRequest("m", "chat", 0.1, 3, 0, error_type="INTERNAL"))
    found = samples(metrics)
    assert total(found, "gen_ai_server_request_duration_seconds_count") == 3
    assert total(found, "gen_ai_server_time_to_first_token_seconds_count") == 2
    # One token has no time between tokens; five have four of them.
    assert total(found, "gen_ai_server_time_per_output_token_seconds_count") == 1
    assert total(found, "gen_ai_server_time_per_output_token_seconds_sum") == pytest.approx(0.2)
    assert total(found, "hundredfold_request_queue_time_seconds_count") == 1
    for priority in (-7, 3, 4):
        metrics.finished(FinishedRequest("m", "chat", 0.5, 3, 1, queue_s=0.003, priority=priority))
    found = samples(metrics)
    waited = {
        dict(labels)["priority"]: count
        for (name, labels), count in found.items()
        if name == "hundredfold_request_queue_time_seconds_count"
    }
    assert waited == {"low": 1, "normal": 1, "high": 2}
    assert total(found, "hundredfold_prompt_tokens_total") == 25
    assert total(found, "hundredfold_cached_tokens_total") == 4
    assert total(found, "hundredfold_output_tokens_total") == 9
    errors = [labels for (name, labels) in found if ("error_type", "INTERNAL") in labels]
    assert errors


def test_edges_begin_at_a_millisecond(metrics: ServiceMetrics) -> None:
    metrics.step(0.003, computed_tokens=7, recomputed_tokens=2)
    edges = {dict(labels)["le"] for name, labels in samples(metrics) if name.endswith("_bucket")}
    assert {"0.001", "0.002", "0.004", "0.006", "0.008", "0.01"} <= edges
    assert total(samples(metrics), "hundredfold_computed_tokens_total") == 7
    assert total(samples(metrics), "hundredfold_recomputed_tokens_total") == 2


def test_counters(metrics: ServiceMetrics) -> None:
    metrics.rejected("queue_full")
    metrics.rejected("queue_full")
    metrics.rejected("too_long")
    metrics.aborted()
    metrics.preempted()
    found = samples(metrics)
    assert found["hundredfold_rejected_total", (("reason", "queue_full"),)] == 2
    assert found["hundredfold_rejected_total", (("reason", "too_long"),)] == 1
    assert total(found, "hundredfold_aborted_total") == 1
    assert total(found, "hundredfold_preemptions_total") == 1


def test_gauges_show_the_moment(metrics: ServiceMetrics) -> None:
    load = LoadSample(
        running=3,
        waiting=2,
        waiting_tokens=40,
        cache_usage=0.25,
        free_blocks=5,
        cached_blocks=1,
        used_blocks=2,
    )
    moments = [load, LoadSample()]
    metrics.watch_load(lambda: moments[0])
    found = samples(metrics)
    assert total(found, "hundredfold_requests_running") == 3
    assert total(found, "hundredfold_requests_waiting") == 2
    assert total(found, "hundredfold_cache_usage") == 0.25
    assert found["hundredfold_cache_blocks", (("state", "used"),)] == 2
    moments.pop(0)
    assert total(samples(metrics), "hundredfold_requests_running") == 0


def test_labels_are_few_and_name_no_request(metrics: ServiceMetrics) -> None:
    metrics.finished(FinishedRequest("m", "chat", 1.0, 10, 5, time_to_first_token_s=0.2, queue_s=0.1))
    labels = {key for _, pairs in samples(metrics) for key, _ in pairs}
    assert labels <= {
        *("le", "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model"),
        *("gen_ai_response_model", "service_name", "service_instance_id", "priority"),
        *("telemetry_sdk_language", "telemetry_sdk_name", "telemetry_sdk_version"),
    }


def test_two_services_in_one_process_count_apart(metrics: ServiceMetrics) -> None:
    other = ServiceMetrics("worker", Demo(metrics_port=2))
    metrics.aborted()
    other.preempted()
    assert total(samples(other), "hundredfold_aborted_total") == 0


def test_without_a_port_nothing_is_kept() -> None:
    quiet = ServiceMetrics("scheduler", Demo())
    quiet.finished(FinishedRequest("m", "chat", 1.0, 10, 5))
    quiet.watch_load(lambda: pytest.fail("nobody scrapes"))
    assert quiet._scrape is None
