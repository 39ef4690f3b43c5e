"""The table of the peers: medians over the rounds, ratios, and why one could not run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

OURS = "hundredfold"


@dataclass(slots=True)
class PeerRow:
    """One engine: its speeds by number of requests at once, a figure for each round."""

    key: str
    title: str
    versions: Mapping[str, str] = field(default_factory=dict)
    runs: dict[int, list[float]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    """Why there is no figure, by requests at once."""
    failure: str = ""
    """Why it could not run at all."""

    def speed(self, batch: int) -> float | None:
        """Median of the rounds in output tokens a second."""
        return median(self.runs[batch]) if self.runs.get(batch) else None

    @property
    def spread(self) -> float | None:
        """Largest distance of a run from its median, as a share of it."""
        found = [
            max(abs(run - median(runs)) for run in runs) / median(runs)
            for runs in self.runs.values()
            if len(runs) > 1
        ]
        return max(found, default=None)


@dataclass(frozen=True, slots=True)
class PeerReport:
    """All rows."""

    rows: Sequence[PeerRow]
    batches: Sequence[int]
    model: str
    machine: str
    input_len: int
    output_len: int
    rounds: int

    def ratio(self, row: PeerRow, batch: int) -> float | None:
        """Our speed by the row's."""
        ours = next((one.speed(batch) for one in self.rows if one.key == OURS), None)
        theirs = row.speed(batch)
        return ours / theirs if ours and theirs else None

    def to_json(self) -> str:
        """One JSON object: rows with every run, medians and ratios."""
        rows = [
            {
                **asdict(row),
                "medians": {batch: row.speed(batch) for batch in self.batches},
                "ours_by_it": {batch: self.ratio(row, batch) for batch in self.batches},
            }
            for row in self.rows
        ]
        facts = {
            name: getattr(self, name) for name in ("model", "machine", "input_len", "output_len", "rounds")
        }
        return json.dumps({**facts, "batches": list(self.batches), "rows": rows}, indent=2)


def render(report: PeerReport) -> RenderableType:
    """For a terminal."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("output tokens/s")
    for batch in report.batches:
        table.add_column(f"{batch} at once", justify="right")
        table.add_column("ours by it", justify="right")
    table.add_column("spread", justify="right")
    for row in report.rows:
        if row.failure:
            continue
        cells = [cell for batch in report.batches for cell in _cells(report, row, batch)]
        spread = "–" if row.spread is None else f"{row.spread:.0%}"
        style = "bold green" if row.key == OURS else ""
        table.add_row(Text(row.title, style), *(Text(cell, style) for cell in cells), spread)
    facts = [Text(_facts(report), style="dim"), Text(_versions(report), style="dim")]
    return Group(table, Text(), *facts, *(Text(f"✗ {line}", style="red") for line in failures(report)))


def markdown(report: PeerReport) -> str:
    """For a README."""
    heads = [part for batch in report.batches for part in (f"{batch} at once", "ours by it")]
    lines = [f"| output tokens/s | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for row in report.rows:
        if not row.failure:
            cells = [cell for batch in report.batches for cell in _cells(report, row, batch)]
            lines.append(f"| {row.title} | {' | '.join(cells)} |")
    lines += ["", f"{_facts(report)} {_versions(report)}."]
    lines += [f"- {line}" for line in failures(report)]
    return "\n".join(lines) + "\n"


def failures(report: PeerReport) -> list[str]:
    """A line for everything that could not run, and why."""
    told = [f"{row.title} could not run: {row.failure}" for row in report.rows if row.failure]
    return told + [
        f"{row.title}, {batch} at once: {why}" for row in report.rows for batch, why in row.failures.items()
    ]


def _cells(report: PeerReport, row: PeerRow, batch: int) -> tuple[str, str]:
    speed, ratio = row.speed(batch), report.ratio(row, batch)
    shown = "–" if speed is None else f"{speed:,.0f}" if speed >= 100 else f"{speed:,.1f}"
    return shown, "" if row.key == OURS else "–" if ratio is None else f"{ratio:.2f}"


def _facts(report: PeerReport) -> str:
    return (
        f"{report.model}, {report.input_len} in / {report.output_len} out, greedy, medians of "
        f"{report.rounds} rounds in turns, on {report.machine}."
    )


def _versions(report: PeerReport) -> str:
    known = dict(item for row in report.rows for item in row.versions.items())
    return ", ".join(f"{name} {version}" for name, version in known.items())
