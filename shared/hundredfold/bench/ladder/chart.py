"""Draws a ladder as a picture. By matplotlib, an extra: it brings its own fonts and writes PNG by itself."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten

from hundredfold.bench.ladder.rows import Ladder, Row, tokens_of

NAIVE, OURS, BEST, SINGLE = "#9aa0a6", "#3b7dd8", "#1b9e5a", "#8db7ec"
INK, FAINT = "#202124", "#5f6368"
ROW_INCHES = 0.36


class ChartError(Exception):
    """The picture cannot be drawn; the message says what is missing."""


def draw(ladder: Ladder, path: Path) -> None:
    """Write the chart to ``path``; its ending says in which format. Raises ChartError."""
    rows = [row for row in ladder.rows if row.tokens_per_s]
    if not rows:
        raise ChartError("no row has figures to draw")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ChartError("a chart needs matplotlib: install hundredfold[bench]") from None
    figure = Figure(figsize=(10.5, 1.9 + ROW_INCHES * len(rows)), dpi=140, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.40, 0.9 / figure.get_figheight(), 0.52, 1 - 1.9 / figure.get_figheight()))
    speeds = [tokens_of(row) for row in rows]
    best = max(speeds)
    places = range(len(rows))
    axes.barh(places, speeds, height=0.68, color=[_colour(row, best) for row in rows])
    for place, row in zip(places, rows, strict=True):
        ratio = f"   × {row.ratio:,.1f}" if row.ratio is not None else ""
        text = f"{tokens_of(row):,.0f}" if tokens_of(row) >= 100 else f"{tokens_of(row):,.1f}"
        axes.text(tokens_of(row) + best * 0.008, place, text + ratio, va="center", fontsize=8.5, color=INK)
    axes.set_yticks(list(places), [_label(row) for row in rows], fontsize=8.5, color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, best * 1.16)
    axes.set_xlabel("output tokens per second, counted at the client", fontsize=8.5, color=FAINT)
    axes.tick_params(axis="x", labelsize=8, colors=FAINT)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e4e6e9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#c4c7cb")
    top = 1 - 0.42 / figure.get_figheight()
    title = f"{ladder.model}, {ladder.input_len} tokens in, {ladder.output_len} out"
    figure.text(0.02, top, title, fontsize=13, weight="bold", color=INK)
    below = 1 - 0.72 / figure.get_figheight()
    figure.text(0.02, below, shorten(_subtitle(ladder), 150), fontsize=8.5, color=FAINT)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ChartError(f"{path}: {error}") from error


def _colour(row: Row, best: float) -> str:
    if row.tokens_per_s == best:
        return BEST
    if row.stage.startswith("naive"):
        return NAIVE
    return SINGLE if row.load.startswith("1 request") else OURS


def _label(row: Row) -> str:
    return f"{row.title.replace('`', '')}  ·  {row.load}"


def _subtitle(ladder: Ladder) -> str:
    told = ladder.machine
    if ladder.ceilings is not None:
        told += f", {ladder.ceilings.read_bytes_per_s / 1e9:.0f} GB/s, {ladder.ceilings.instructions}"
    return f"{told}. Grey: transformers. Pale: one request at a time. Ratios are to the first bar."
