"""Shows a ladder: to a person at a terminal, and as the Markdown that a README holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hundredfold.bench.ladder.rows import Ladder, Row, tokens_of
from hundredfold.bench.sweep_table import bar
from hundredfold.bench.table import milliseconds

BAR_CELLS = range(6, 31)
"""Widths that a bar may have; where there is less room there is none."""
FIXED_CELLS = 112
"""What a line needs beside the bar."""
MIB = 2**20

COLUMNS = ("tokens/s", "×", "ms/token", "TTFT", "memory", "reads", "products")
LEGEND = (
    "× the first line · ms/token, TTFT: a request's median · memory: peak of all services since they began\n"
    "reads, products: share of this machine's memory bandwidth and of its fastest products (* of int8)"
)


def render_ladder(ladder: Ladder, width: int = 120) -> RenderableType:
    """Return the ladder as a panel for a terminal of ``width`` columns, 80 or more."""
    parts: list[RenderableType] = [_rows(ladder, width), Text(), Text(LEGEND, style="dim"), Text()]
    parts.append(_facts(ladder))
    parts += [Text(f"✗ {line}", style="red") for line in _reasons(ladder.rows)]
    parts += [Text(f"! {note}", style="yellow") for note in _notes(ladder)]
    load = f"  {ladder.input_len} in / {ladder.output_len} out, greedy"
    title = Text.assemble(("hundredfold bench ladder", "bold"), (load, "dim"))
    return Panel(Group(*parts), title=title, title_align="left", box=ROUNDED, padding=(1, 2), expand=False)


def markdown(ladder: Ladder) -> str:
    """The ladder as a Markdown table with what it was measured on."""
    lines = [
        f"| stage | load | {' | '.join(COLUMNS)} |",
        f"|---|---|{'---:|' * len(COLUMNS)}",
    ]
    for row in ladder.rows:
        figures = [f"*{row.reason}*", *([""] * (len(COLUMNS) - 1))] if row.reason else _figures(row)
        lines.append(f"| {' | '.join([_escaped(row.title), row.load, *map(_escaped, figures)])} |")
    lines += ["", _sentence(ladder)]
    return "\n".join(lines) + "\n"


def _rows(ladder: Ladder, width: int) -> RenderableType:
    cells = min(width - FIXED_CELLS, BAR_CELLS[-1])
    narrow = width < FIXED_CELLS
    hidden = ("reads", "products") if narrow else ()
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stage")
    for name in COLUMNS:
        if name not in hidden:
            table.add_column(name, justify="right", no_wrap=True)
        if name == "tokens/s" and cells in BAR_CELLS:
            table.add_column("", no_wrap=True)
    most = max(map(tokens_of, ladder.rows), default=0.0)
    shown = ""
    for row in ladder.rows:
        if row.title != shown and (row.load != "1 request" or _many(ladder, row)):
            table.add_row(Text(row.title, style="bold"))
        elif row.title != shown:
            table.add_row(Text(row.title, style="bold"), *_cells(row, most, cells, hidden))
            shown = row.title
            continue
        shown = row.title
        table.add_row(Text(f"  {row.load}"), *_cells(row, most, cells, hidden))
    return table


def _many(ladder: Ladder, row: Row) -> bool:
    return sum(other.stage == row.stage for other in ladder.rows) > 1


def _cells(row: Row, most: float, cells: int, hidden: Sequence[str]) -> list[Text]:
    if row.reason:
        return [Text("–", style="red")]
    style = "bold green" if row.tokens_per_s == most else "green"
    found = []
    for name, figure in zip(COLUMNS, _figures(row), strict=True):
        if name in hidden:
            continue
        found.append(Text(figure, style=style if name == "tokens/s" else "bold" if name == "×" else ""))
        if name == "tokens/s" and cells in BAR_CELLS:
            found.append(Text(bar(tokens_of(row) / most if most else 0.0, cells), style=style))
    return found


def _figures(row: Row) -> list[str]:
    """A row's figures in the order of COLUMNS."""
    peak = sum(row.peak_memory_bytes.values())
    star = "*" if row.arithmetic == "int8" else ""
    return [
        _speed(tokens_of(row)),
        "–" if row.ratio is None else f"{row.ratio:,.1f}" if row.ratio < 100 else f"{row.ratio:,.0f}",
        milliseconds(row.ms_per_token),
        _time(row.ttft_ms),
        f"{peak / MIB:,.0f} MiB" if peak else "–",
        _share(row.read_share),
        _share(row.operations_share) + (star if row.operations_share is not None else ""),
    ]


def _facts(ladder: Ladder) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("model", ladder.model)
    grid.add_row("machine", ladder.machine)
    if ladder.ceilings is not None:
        grid.add_row("ceilings", _ceilings(ladder))
    grid.add_row("measured", f"in {ladder.seconds / 60:.1f} minutes")
    return grid


def _ceilings(ladder: Ladder) -> str:
    ceilings = ladder.ceilings
    if ceilings is None:
        return "unknown"
    products = ", ".join(
        f"{name} {rate / 1e9:,.0f}" for name, rate in ceilings.operations_per_s.items() if rate
    )
    return f"{ceilings.read_bytes_per_s / 1e9:,.1f} GB/s read; products in Gop/s: {products}"


def _reasons(rows: Iterable[Row]) -> Iterator[str]:
    """Why rows have no figures, each reason once."""
    told: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row.reason:
            told.setdefault(row.reason, {}).setdefault(row.title, []).append(row.load)
    for reason, stages in told.items():
        named = (f"{title} ({', '.join(loads)})" for title, loads in stages.items())
        yield f"{'; '.join(named)}: {reason}"


def _notes(ladder: Ladder) -> list[str]:
    """What to know, each kind of warning once: what it says up to its first colon makes the kind."""
    kinds: dict[str, list[str]] = {}
    for row in ladder.rows:
        for text in row.warnings:
            kinds.setdefault(text.partition(":")[0], []).append(f"{row.title}, {row.load}: {text}")
    more = {kind: f" (and {len(told) - 1} more rows)" if told[1:] else "" for kind, told in kinds.items()}
    return [*ladder.notes, *(told[0] + more[kind] for kind, told in kinds.items())]


def _sentence(ladder: Ladder) -> str:
    told = f"Model {ladder.model}, {ladder.input_len} tokens in and {ladder.output_len} out, greedy, on "
    told += f"{ladder.machine}; measured in {ladder.seconds / 60:.0f} minutes."
    if ladder.ceilings is not None:
        told += f" Ceilings: {_ceilings(ladder)}."
    return f"{told} \\* of the int8 ceiling."


def _escaped(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return escaped if text.startswith("*") else escaped.replace("*", "\\*")


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _time(value: float | None) -> str:
    if value is not None and value >= 10_000:
        return f"{value / 1e3:,.1f} s"
    return f"{milliseconds(value)} ms"
