"""A row of numbers as coloured cells in a terminal: pale is little, red is much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

_STOPS = ((38, 70, 83), (42, 157, 143), (233, 196, 106), (244, 162, 97), (214, 40, 57))
"""From little to much, red, green and blue."""
_NOTHING = "bright_black"


def cells(values: Sequence[float | None], least: float, most: float, width: int = 1) -> Text:
    """One cell of ``width`` characters for each value; ``None`` is a dot."""
    row = Text()
    for value in values:
        if value is None or not math.isfinite(value):
            row.append("·" * width, style=_NOTHING)
        else:
            row.append("█" * width, style=Style(color=colour(value, least, most)))
    return row


def colour(value: float, least: float, most: float) -> str:
    """The colour of a value between two ends, as ``#rrggbb``."""
    share = 0.0 if most <= least else min(1.0, max(0.0, (value - least) / (most - least)))
    at = share * (len(_STOPS) - 1)
    low = min(int(at), len(_STOPS) - 2)
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def scale(least: float, most: float, text: str, steps: int = 12) -> Text:
    """A legend: from the least to the most."""
    shades = [least + (most - least) * step / (steps - 1) for step in range(steps)]
    return Text.assemble(
        (f"{text}  {least:.3g} ", "dim"), cells(shades, least, most), (f" {most:.3g}", "dim")
    )
