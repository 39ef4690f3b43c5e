"""A diagnosis for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hundredfold.findings import Finding, Severity
from hundredfold_worker.diagnose.attention import LayerPattern
from hundredfold_worker.diagnose.diagnosis import Diagnosis
from hundredfold_worker.heat import cells, scale
from hundredfold_worker.quality.grid import grid_of

_WIDE = 24
"""Layers up to which a cell has two characters."""

_MARKS = {
    Severity.ERROR: ("✗", "bold red"),
    Severity.WARNING: ("!", "bold yellow"),
    Severity.FINE: ("✓", "green"),
}


def to_json(found: Diagnosis) -> str:
    """One object."""
    whole: dict[str, Any] = {
        "findings": [{**asdict(one), "severity": one.severity.value} for one in found.findings],
        "prompt_tokens": found.prompt_tokens,
        "attention": [asdict(layer) for layer in found.patterns],
        "temperatures": [
            {**asdict(one), "text": text} for one, text in zip(found.sampled, found.texts, strict=True)
        ],
        "layers": [asdict(loss) for loss in found.losses],
        "wrong": found.wrong,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False)


def render(found: Diagnosis) -> RenderableType:
    """Findings, then what they rest on."""
    parts: list[RenderableType] = [_finding(finding) for finding in found.findings]
    if found.patterns and all(layer.finite for layer in found.patterns):
        parts += ["", _attention(found.patterns, found.prompt_tokens)]
    if found.sampled:
        parts += ["", _sweep(found)]
    if found.losses:
        parts += ["", _losses(found)]
    return Group(*parts, "", _verdict(found))


def _finding(finding: Finding) -> RenderableType:
    mark, style = _MARKS[finding.severity]
    if finding.severity is Severity.FINE:
        return Text.assemble((f"{mark} ", style), (f"{finding.name}  ", "dim"), (finding.said, "dim"))
    head = Text.assemble((f"{mark} {finding.name}  ", style), finding.said)
    table = Table.grid(padding=(0, 1))
    table.add_row(Text("cause", style="dim"), finding.cause)
    table.add_row(Text("remedy", style="dim"), Text(finding.remedy, style="cyan"))
    return Group(head, Padding(table, (0, 0, 0, 2)))


def _attention(found: list[LayerPattern], tokens: int) -> RenderableType:
    rows = (
        ("entropy", "mean of heads; 1 looks everywhere alike", [_mean(layer.entropy) for layer in found]),
        ("sharpest head", "its entropy", [min(layer.entropy) for layer in found]),
        ("first token", "its share", [layer.sink for layer in found]),
        ("nearest 4", "their share", [layer.near for layer in found]),
    )
    width = 2 if len(found) <= _WIDE else 1
    table = Table.grid(padding=(0, 2))
    for name, meaning, values in rows:
        table.add_row(
            name, cells(values, 0.0, 1.0, width), f"{_mean(values):.2f}", Text(meaning, style="dim")
        )
    title = Text(f"Attention over {tokens} tokens, a column for each of {len(found)} layers", style="bold")
    return Group(title, "", table, scale(0.0, 1.0, ""))


def _mean(values: list[float] | tuple[float, ...]) -> float:
    return sum(values) / max(1, len(values))


def _sweep(found: Diagnosis) -> RenderableType:
    table = Table(title="Temperatures", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("t", justify="right")
    table.add_column("best token", justify="right")
    table.add_column("entropy", justify="right")
    table.add_column("text")
    for one, text in zip(found.sampled, found.texts, strict=True):
        shown = " ".join(text.split())
        table.add_row(
            f"{one.temperature:g}",
            f"{one.best:.0%}",
            f"{one.entropy:.2f}",
            Text(shown + (" ↻" if one.loops else ""), style="" if not one.loops else "yellow"),
        )
    return table


def _losses(found: Diagnosis) -> RenderableType:
    grid = grid_of(found.losses)
    finite = [loss.error for loss in found.losses if loss.error < float("inf")]
    most = max(finite, default=0.0)
    width = 2 if len(grid.layers) <= _WIDE else 1
    table = Table.grid(padding=(0, 2))
    for kind, errors in zip(grid.kinds, grid.errors, strict=True):
        table.add_row(kind, cells(errors, 0.0, most, width))
    title = Text("Error of each product against the other model, a column for each layer", style="bold")
    return Group(title, "", table, scale(0.0, 100 * most, "error in %"))


def _verdict(found: Diagnosis) -> Text:
    counts = {kind: sum(one.severity is kind for one in found.findings) for kind in Severity}
    errors, warnings = counts[Severity.ERROR], counts[Severity.WARNING]
    if errors:
        return Text(f"{errors} wrong, {warnings} to look at, {counts[Severity.FINE]} fine", style="bold red")
    style = "bold yellow" if warnings else "bold green"
    return Text(f"nothing wrong, {warnings} to look at, {counts[Severity.FINE]} fine", style=style)
