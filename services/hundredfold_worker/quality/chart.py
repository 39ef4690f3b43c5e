"""Draws each layer's loss as a heat map. By matplotlib, an extra: it writes PNG, SVG and PDF by itself."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Any

from hundredfold.errors import StartError
from hundredfold_worker.quality.compare import Comparison
from hundredfold_worker.quality.grid import Grid, grid_of

INK, FAINT, EMPTY = "#202124", "#5f6368", "#eceef1"
_CELL_INCHES = 0.30
_TOP, _BOTTOM, _LEFT, _RIGHT = 1.02, 0.62, 1.75, 1.15


def draw(comparison: Comparison, path: Path) -> None:
    """Write the picture; its ending says in which format.

    Raises ``StartError`` where layers were not compared, matplotlib is missing, or writing fails.
    """
    if not comparison.layers:
        raise StartError("a chart needs the layers: add --layers")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise StartError("a chart needs matplotlib: install hundredfold[bench]") from None
    grid = grid_of(comparison.layers)
    across, down = len(grid.layers), len(grid.kinds)
    width = max(7.5, _LEFT + across * _CELL_INCHES + _RIGHT)
    height = _TOP + down * _CELL_INCHES * 1.5 + _BOTTOM
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white")
    FigureCanvasAgg(figure)
    box = (_LEFT / width, _BOTTOM / height, (width - _LEFT - _RIGHT) / width, 1 - (_TOP + _BOTTOM) / height)
    _map(figure, figure.add_axes(box), grid)
    a, b = comparison.sides
    figures = comparison.figures
    left = 0.22 / width
    title = "Error of each product by itself, B against A"
    figure.text(left, 1 - 0.36 / height, title, fontsize=12, weight="bold", color=INK)
    told = f"A: {a.side}  ·  B: {b.side}"
    figure.text(left, 1 - 0.60 / height, shorten(told, 140), fontsize=8, color=FAINT)
    lost = (
        f"perplexity {figures.perplexity[0]:.3f} to {figures.perplexity[1]:.3f} "
        f"({figures.perplexity_increase:+.2%} ± {figures.perplexity_increase_error:.2%}), "
        f"same best token {figures.top1_agreement:.1%}"
    )
    figure.text(left, 1 - 0.80 / height, lost, fontsize=8, color=FAINT)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise StartError(f"the chart {path} cannot be written: {error}") from error


def _map(figure: Any, axes: Any, grid: Grid) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list(
        "loss", ["#eef4f3", "#9fd3c7", "#f2d388", "#ee8f5c", "#c62f3e"]
    )
    axes.set_facecolor(EMPTY)
    values = np.array(
        [[np.nan if error is None else 100 * error for error in row] for row in grid.errors], dtype=float
    )
    image = axes.imshow(values, cmap=colours, aspect="auto", vmin=0.0, interpolation="nearest")
    axes.set_yticks(range(len(grid.kinds)), grid.kinds, fontsize=8.5, color=INK)
    step = max(1, len(grid.layers) // 24)
    shown = range(0, len(grid.layers), step)
    axes.set_xticks(list(shown), [str(grid.layers[at]) for at in shown], fontsize=7.5, color=FAINT)
    axes.set_xlabel("layer", fontsize=8.5, color=FAINT)
    axes.tick_params(length=0)
    axes.set_xticks(np.arange(-0.5, len(grid.layers)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(grid.kinds)), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="minor", length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    bar = figure.colorbar(image, ax=axes, cax=axes.inset_axes((1.015, 0.0, 0.012, 1.0)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7.5, colors=FAINT, length=0)
    bar.ax.yaxis.set_major_formatter("{x:g} %")
