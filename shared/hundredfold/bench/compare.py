"""Sets two reports side by side: the figures, and how the second relates to the first."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hundredfold.bench.report import Report

LATENCY_KEYS = ("ttft_ms", "tpot_ms", "itl_ms", "latency_ms")
NOTABLE = 0.05
"""Relative difference from which a ratio is coloured."""


def rows(first: Report, second: Report) -> Iterator[tuple[str, float | None, float | None, bool]]:
    """Yield name, both values and whether more is better, for each figure that is compared."""
    yield "output_tokens_per_s", first.output_tokens_per_s, second.output_tokens_per_s, True
    yield "requests_per_s", first.requests_per_s, second.requests_per_s, True
    yield "failed", first.failed, second.failed, False
    for key in LATENCY_KEYS:
        for percentile in ("mean", "p50", "p99"):
            name = f"{key} {percentile}"
            yield (
                name,
                getattr(getattr(first, key), percentile),
                getattr(getattr(second, key), percentile),
                False,
            )
    for service in first.peak_memory_bytes.keys() & second.peak_memory_bytes.keys():
        mib = [report.peak_memory_bytes[service] / 2**20 for report in (first, second)]
        yield f"peak MiB {service}", mib[0], mib[1], False


def differing_parameters(first: Report, second: Report) -> list[str]:
    """Name what was not the same in both runs: a comparison is fair where just one thing differs."""
    told = [
        f"{name}: {getattr(first, name)} → {getattr(second, name)}"
        for name in ("mode", "device", "precision")
        if getattr(first, name) != getattr(second, name)
    ]
    for what, one, other in (
        ("", first.parameters, second.parameters),
        ("version of ", first.versions, second.versions),
    ):
        told += [
            f"{what}{name}: {one.get(name)} → {other.get(name)}"
            for name in sorted(one.keys() | other.keys())
            if one.get(name) != other.get(name)
        ]
    return told


def render_comparison(first: Report, second: Report, names: tuple[str, str]) -> RenderableType:
    """Return the table of ratios second / first, and below it what differed between the runs."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for name in (*names, "ratio"):
        table.add_column(name, justify="right", overflow="fold")
    for name, one, other, more_is_better in rows(first, second):
        if one is not None and other is not None:
            table.add_row(name, f"{one:,.2f}", f"{other:,.2f}", _ratio(one, other, more_is_better))
    notes = [Text(f"differs  {line}", style="yellow") for line in differing_parameters(first, second)]
    return Group(table, *notes)


def _ratio(one: float, other: float, more_is_better: bool) -> Text:
    if not one:
        return Text("–" if other else "1.000")
    ratio = other / one
    style = "" if abs(ratio - 1) < NOTABLE else "green" if (ratio > 1) == more_is_better else "red"
    return Text(f"{ratio:.3f}", style=style)
