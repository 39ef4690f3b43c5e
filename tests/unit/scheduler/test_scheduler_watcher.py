"""What the core does, as log lines and metrics: item 5 and item 126 where an operator sees them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hundredfold.telemetry import ServiceMetrics, configure_logging
from hundredfold_scheduler.core.intake import QueueLimits
from hundredfold_scheduler.settings import SchedulerSettings
from hundredfold_scheduler.watcher import Watcher
from support.fake_worker import Script
from support.scheduler_harness import SMALL, Harness


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(SchedulerSettings(log_format="json"), stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def scraped(metrics: ServiceMetrics) -> dict[str, float]:
    assert metrics._scrape is not None
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(generate_latest(metrics._scrape.registry).decode()):
        for sample in family.samples:
            name = sample.name + (f":{sample.labels['reason']}" if "reason" in sample.labels else "")
            found[name] = found.get(name, 0.0) + sample.value
    return found


def test_logs_and_metrics_of_a_hard_life(log_lines: io.StringIO) -> None:
    metrics = ServiceMetrics("scheduler", SchedulerSettings(metrics_port=1))
    harness = Harness(
        replace(SMALL, num_blocks=10, max_num_seqs=3), observer=Watcher(metrics), queue=QueueLimits(1, 10**6)
    )
    for i in range(3):
        harness.submit(i, [3 + i] * 20, 100, skip_prefix_cache=True)
    for i in range(3, 7):
        harness.submit(i, [3] * 20, 4)
    harness.submit(10, [3] * 500, 4)
    harness.submit(11, [3] * 20, 4, request_id="request-0")
    for _ in range(5):
        harness.turn()
    harness.cancel(3)
    harness.submit(12, [9] * 20, 4, Script(fail_at=1))
    harness.run()
    found = scraped(metrics)
    totals = harness.scheduler.state.totals
    assert found["hundredfold_rejected_total:queue_requests"] == 3
    assert found["hundredfold_rejected_total:invalid"] == 1
    assert found["hundredfold_rejected_total:duplicate"] == 1
    assert found["hundredfold_aborted_total"] == 1
    assert found["hundredfold_preemptions_total"] == totals.preemptions > 0
    assert found["hundredfold_computed_tokens_total"] == totals.computed_tokens
    assert found["hundredfold_recomputed_tokens_total"] == totals.recomputed_tokens > 0
    lines = [json.loads(line) for line in log_lines.getvalue().splitlines()]
    preempted = [line for line in lines if line["event"] == "preempted"]
    assert len(preempted) == totals.preemptions
    for line in preempted:
        assert line["request_id"].startswith("request-")
        assert line["lost_tokens"] > 0
        assert line["free_blocks"] == 0
    (failed,) = [line for line in lines if line["event"] == "request failed"]
    assert failed["request_id"] == "request-12"


def test_drafts_are_counted() -> None:
    """Report 51: what was tried and what was right, each by itself, so that the rate hides nothing."""
    metrics = ServiceMetrics("scheduler", SchedulerSettings(metrics_port=1))
    harness = Harness(replace(SMALL, max_draft_tokens=4, max_draft_rows=8), observer=Watcher(metrics))
    harness.submit(0, [5] * 20, 100)
    harness.run()
    found, totals = scraped(metrics), harness.scheduler.state.totals
    assert found["hundredfold_drafted_tokens_total"] == totals.drafted_tokens
    assert found["hundredfold_accepted_tokens_total"] == totals.accepted_tokens
    assert 0 < totals.accepted_tokens < totals.drafted_tokens
