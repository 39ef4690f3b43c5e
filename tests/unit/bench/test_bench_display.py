"""What a person sees: the table holds the figures, the comparison the ratios, failures are in plain sight."""

from dataclasses import replace

import numpy as np
from rich.console import Console

from hundredfold.bench.compare import differing_parameters, render_comparison
from hundredfold.bench.report import Environment, Report, RequestRecord, summarize
from hundredfold.bench.server import describe
from hundredfold.bench.table import render
from hundredfold.v1.control_pb2 import ServiceInfo


def example() -> Report:
    good = RequestRecord(0.0, 2.0, np.array([0.5, 1.0, 2.0]), 1, 3, 64, 16, 3, queue_s=0.1)
    refused = RequestRecord(0.0, 0.1, error="RESOURCE_EXHAUSTED", detail="queue of 8 requests is full")
    environment = Environment("cpu", "bf16", {"hundredfold": "0.1.0"}, {"worker": 300 * 2**20})
    return summarize(
        [good, refused],
        mode="serve",
        environment=environment,
        parameters={"concurrency": 2, "input-len": 64, "output-len": 3, "rate": None},
        client={"processes": 1, "cpu_share": 0.25, "loop_lag_p99_ms": 0.5},
        warnings=["mind the gap"],
    )


def shown(renderable, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


def test_table_shows_figures_failures_and_warnings():
    text = shown(render(example()))
    for part in (
        "1.5", "output tokens/s", "1 of 2", "time to first token", "500", "750", "300 MiB", "2 at a time",
        "1 × RESOURCE_EXHAUSTED", "queue of 8 requests is full", "mind the gap", "25% of the prompts",
    ):  # fmt: skip
        assert part in text, part


def test_table_fits_80_columns():
    assert max(map(len, shown(render(example()), width=80).splitlines())) <= 80


def test_comparison_shows_ratios_and_what_differed():
    one = example()
    two = replace(one, output_tokens_per_s=3.0, parameters={**one.parameters, "concurrency": 4})
    text = shown(render_comparison(one, two, ("a", "b")))
    row = next(line for line in text.splitlines() if line.startswith("output_tokens_per_s"))
    assert row.split()[1:] == ["1.50", "3.00", "2.000"]
    assert differing_parameters(one, two) == ["concurrency: 2 → 4"]
    assert "concurrency: 2 → 4" in text


def test_services_of_one_name_are_kept_apart():
    services = [
        ServiceInfo(service="tokenizer", version="0.1.0", peak_resident_bytes=1),
        ServiceInfo(service="worker", version="0.1.0", peak_resident_bytes=2, libraries={"torch": "2.13"}),
        ServiceInfo(service="worker", version="0.1.0", peak_resident_bytes=3),
    ]
    services[1].runtime.device = "cpu"
    services[1].runtime.dtype = "float32"
    services[1].runtime.selections.add(subject="kv_cache", chosen="fp32")
    found = describe(services)
    assert found.peak_memory_bytes == {"tokenizer": 1, "worker": 2, "worker-2": 3}
    assert found.device == "cpu"
    assert found.precision == "float32, kv_cache fp32"
    assert found.versions == {"hundredfold": "0.1.0", "torch": "2.13"}
