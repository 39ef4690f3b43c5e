"""Shows a report, or two side by side, to a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hundredfold.bench.report import Distribution, Number, Report

LATENCIES = (
    ("time to first token (TTFT)", "ttft_ms"),
    ("time per output token (TPOT)", "tpot_ms"),
    ("gap between events (ITL)", "itl_ms"),
    ("whole request", "latency_ms"),
    ("queue in the server", "server_queue_ms"),
)
COLUMNS = ("mean", "p50", "p90", "p99")
"""The percentiles of a distribution, in the order of the table."""


def render(report: Report) -> RenderableType:
    """Return the report as a panel for a terminal of 80 columns or more."""
    parts: list[RenderableType] = [_headline(report), Text(), _latencies(report), Text(), _facts(report)]
    parts += [Text(f"✗ {line}", style="red") for line in _failures(report)]
    parts += [Text(f"! {line}", style="yellow") for line in report.warnings]
    title = Text.assemble((f"hundredfold bench {report.mode}", "bold"), ("  " + load_line(report), "dim"))
    return Panel(Group(*parts), title=title, title_align="left", box=ROUNDED, padding=(1, 2), expand=False)


def load_line(report: Report) -> str:
    """Say in a few words what load was put on."""
    parameters = report.parameters
    parts = []
    if parameters.get("concurrency") is not None:
        parts.append(f"{parameters['concurrency']} at a time")
    if parameters.get("beam-width") is not None:
        parts.append(f"beams of {parameters['beam-width']}")
    if parameters.get("arrival") is not None:
        rate = parameters.get("rate")
        parts.append(
            f"{parameters['arrival']} arrivals" + (f" at {rate:g}/s" if isinstance(rate, float) else "")
        )
    if parameters.get("prompts") is not None:
        parts.append(f"prompts of {parameters['prompts']}")
    elif "input-len" in parameters:
        parts.append(f"{parameters['input-len']} in / {parameters.get('output-len')} out")
    return " · ".join(parts)


def _headline(report: Report) -> RenderableType:
    """Return the four figures that are looked at first."""
    good = report.requests - report.failed
    requests = Text(f"{good} of {report.requests}", style="bold red" if report.failed else "bold green")
    cells = (
        (Text(f"{report.output_tokens_per_s:,.1f}", style="bold green"), "output tokens/s"),
        (Text(f"{report.requests_per_s:,.2f}", style="bold"), "requests/s"),
        (requests, "requests succeeded"),
        (Text(f"{report.duration_s:,.1f} s", style="bold"), "measured"),
    )
    grid = Table.grid(padding=(0, 4))
    grid.add_row(*(figure for figure, _ in cells))
    grid.add_row(*(Text(label, style="dim") for _, label in cells))
    return grid


def _latencies(report: Report) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("milliseconds")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for label, key in LATENCIES:
        distribution: Distribution = getattr(report, key)
        if distribution.mean is not None:
            table.add_row(label, *(milliseconds(getattr(distribution, name)) for name in COLUMNS))
    return table


def _facts(report: Report) -> RenderableType:
    """Return what was measured, in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("device", f"{report.device}, {report.precision}")
    tokens = f"{report.input_tokens:,} in, {report.output_tokens:,} out"
    if report.cached_tokens_share:
        tokens += f", {report.cached_tokens_share:.0%} of the prompts from the prefix cache"
    if report.repeated_prompts_share:
        tokens += f", {report.repeated_prompts_share:.0%} of the prompts repeated"
    if report.preemptions:
        tokens += f", {report.preemptions} preemptions"
    grid.add_row("tokens", tokens)
    if report.peak_memory_bytes:
        grid.add_row("peak memory", _memory(report.peak_memory_bytes))
    if report.client:
        grid.add_row("load tool", _client(report.client))
    if report.versions:
        grid.add_row("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items()))
    return Padding(grid, (0, 0, 1 if report.failed or report.warnings else 0, 0))


def _failures(report: Report) -> Iterable[str]:
    for status, count in report.failures.items():
        yield f"{count} × {status}"
    for example in report.failure_examples:
        yield f"for example {example}"


def _memory(peaks: Mapping[str, int]) -> RenderableType:
    return Columns([Text(f"{name} {size / 2**20:,.0f} MiB") for name, size in peaks.items()], padding=(0, 3))


def _client(client: Mapping[str, Number]) -> str:
    parts = []
    if "processes" in client:
        parts.append(f"{client['processes']} client process" + ("" if client["processes"] == 1 else "es"))
    if isinstance(share := client.get("cpu_share"), float):
        parts.append(f"{share:.0%} of a core")
    if isinstance(lag := client.get("loop_lag_p99_ms"), float):
        parts.append(f"its clock {lag:.1f} ms late (p99)")
    return ", ".join(parts)


def milliseconds(value: float | None) -> str:
    """A duration with three digits or so; a dash for one that nobody measured."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
