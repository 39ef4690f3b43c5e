"""Shows a sweep to a person at a terminal: a line for each point, a bar for its speed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hundredfold.bench.report import Report
from hundredfold.bench.sweep import Point
from hundredfold.bench.table import milliseconds

BAR_CELLS = range(6, 25)
"""Widths that a bar may have; where there is less room there is none."""
FIXED_CELLS = 68
"""What a terminal's line needs beside the bar, and for the optional columns:"""
BEAMS_CELLS, LENGTHS_CELLS = 8, 16
LEGEND = "× the first point · latency: mean of a request · TTFT: median · memory: peak, all services"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def render_sweep(points: Sequence[Point], width: int = 100) -> RenderableType:
    """Return the sweep as a panel for a terminal of ``width`` columns, 80 or more."""
    known = [point.report for point in points if point.report is not None]
    parts: list[RenderableType] = [
        _points(points, width),
        Text(),
        Text(LEGEND, style="dim"),
        Text(),
        _facts(points, known),
    ]
    notes = dict.fromkeys(warning for report in known for warning in report.warnings)
    parts += [
        Text(f"✗ {_place(point)}: {point.record.error}", style="red")
        for point in points
        if point.record.error
    ]
    parts += [Text(f"! {note}", style="yellow") for note in notes]
    title = Text.assemble(("hundredfold bench sweep", "bold"), ("  " + _load(points), "dim"))
    return Panel(Group(*parts), title=title, title_align="left", box=ROUNDED, padding=(1, 2), expand=False)


def bar(share: float, cells: int) -> str:
    """A bar of ``share`` (0 to 1) of ``cells`` characters, in steps of an eighth; never empty above 0."""
    eighths = max(round(share * cells * 8), 1 if share > 0 else 0)
    full, rest = divmod(min(eighths, cells * 8), 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def _points(points: Sequence[Point], width: int) -> RenderableType:
    speeds = [point.record.tokens_per_s or 0.0 for point in points]
    beams = any(point.record.beam_width is not None for point in points)
    lengths = len({(point.plan.input_len, point.plan.output_len) for point in points}) > 1
    room = width - FIXED_CELLS - BEAMS_CELLS * beams - LENGTHS_CELLS * lengths
    cells = min(room, BAR_CELLS[-1])
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    columns = {
        "batch": True,
        "beams": beams,
        "in / out": lengths,
        "tokens/s": True,
        "": cells in BAR_CELLS,
        "×": room >= 0,
        "latency": True,
        "TTFT": room >= 0,
        "memory": True,
    }
    shown = [name for name, wanted in columns.items() if wanted]
    for name in shown:
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    first = next((speed for speed in speeds if speed), 0.0)
    for point, speed in zip(points, speeds, strict=True):
        figures = _figures(point, speed, max(speeds), first, cells)
        table.add_row(*(figures.get(name, Text("–", style="dim")) for name in shown))
    return table


def _figures(point: Point, speed: float, best: float, first: float, cells: int) -> dict[str, Text]:
    """A row by column; what it has none of stays away."""
    record, plan, report = point.record, point.plan, point.report
    row = {"in / out": Text(f"{plan.input_len:,} / {plan.output_len:,}"), "": Text()}
    for name, value in (("batch", record.batch), ("beams", record.beam_width)):
        if value is not None:
            row[name] = Text(str(value), style="bold")
    if report is None or not speed:
        return {**row, "tokens/s": Text("refused" if report is None else "failed", style="bold red")}
    style = "bold green" if speed == best else "green"
    row["tokens/s"] = Text(f"{speed:,.0f}" if speed >= 100 else f"{speed:,.1f}", style=style)
    row[""] = Text(bar(speed / best, cells), style=style)
    row["×"] = Text(f"{speed / first:.1f}" if speed / first < 100 else f"{speed / first:,.0f}")
    row["latency"] = Text(_time(report.latency_ms.mean))
    row["TTFT"] = Text(_time(report.ttft_ms.p50))
    if record.peak_memory_bytes is not None:
        row["memory"] = Text(f"{record.peak_memory_bytes / 2**20:,.0f} MiB")
    return row


def _facts(points: Sequence[Point], known: Sequence[Report]) -> RenderableType:
    """What was measured, and how much of it failed."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for device in dict.fromkeys(f"{report.device}, {report.precision}" for report in known):
        grid.add_row("device", device)
    good = sum(report.requests - report.failed for report in known)
    asked = sum(report.requests for report in known)
    if known:
        grid.add_row(
            "requests", f"{good:,} of {asked:,} succeeded, {sum(r.duration_s for r in known):,.0f} s measured"
        )
        versions = dict(item for report in known for item in report.versions.items())
        grid.add_row("versions", ", ".join(f"{name} {version}" for name, version in versions.items()))
    missing = len(points) - len(known)
    if missing:
        grid.add_row("points", f"{len(known)} of {len(points)} measured")
    return grid


def _load(points: Sequence[Point]) -> str:
    plans = [point.plan for point in points]
    if plans[0].prompts is not None:
        return f"prompts of {plans[0].prompts.name}"
    lengths = {(plan.input_len, plan.output_len) for plan in plans}
    return "" if len(lengths) > 1 else f"{plans[0].input_len} in / {plans[0].output_len} out"


def _place(point: Point) -> str:
    record = point.record
    parts = [f"batch {record.batch}"] if record.batch is not None else []
    if record.beam_width is not None:
        parts.append(f"beams of {record.beam_width}")
    return ", ".join(parts) or "open loop"


def _time(value: float | None) -> str:
    if value is not None and value >= 10_000:
        return f"{value / 1e3:,.1f} s"
    return f"{milliseconds(value)} ms"
