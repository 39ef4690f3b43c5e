"""What a run says at its end: sizes, what each kind of layer lost, the worst layers; or the same as JSON."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hundredfold_worker.quantize.progress import LayerError
from hundredfold_worker.quantize.run import Outcome

MOST = 5
"""Worst layers that are shown."""


def render(outcome: Outcome) -> RenderableType:
    """For a terminal."""
    table = Table(box=None, pad_edge=False)
    for heading in ("layers", "recipe", "count"):
        table.add_column(heading)
    table.add_column("error of output", justify="right")
    table.add_column("worst", justify="right")
    table.add_column("", overflow="fold")
    for (part, recipe), errors in _by_part(outcome.errors).items():
        mean = sum(error.error for error in errors) / len(errors)
        worst = max(errors, key=lambda error: error.error)
        table.add_row(part, recipe, str(len(errors)), f"{mean:.2%}", f"{worst.error:.2%}", worst.name)
    return Group(table, Text(""), *(Text(line) for line in _lines(outcome)))


def to_json(outcome: Outcome) -> str:
    """One object."""
    text = outcome.calibration
    return json.dumps(
        {
            "output": str(outcome.output),
            "model": outcome.model,
            "source_format": outcome.source_format,
            "source_bytes": outcome.source_bytes,
            "bytes": outcome.bytes,
            "quantization_config": outcome.config,
            "readers": outcome.readers,
            "calibration": None if text is None else {"text": text.name, "tokens": text.num_tokens},
            "layers_taken_up": outcome.resumed_at,
            "layers": [asdict(error) for error in outcome.errors],
        }
    )


def _lines(outcome: Outcome) -> list[str]:
    lines = []
    if outcome.source_format not in ("none", "gguf"):
        lines.append(
            f"the source was quantized already ({outcome.source_format}), and its loss stays: "
            "better start from floats"
        )
    if outcome.source_format == "gguf":
        lines.append("the source is a GGUF file: what its own types lost stays lost")
    text = outcome.calibration
    if text is not None:
        lines.append(f"calibrated on {text.num_tokens} tokens of {text.name}")
    if outcome.resumed_at:
        lines.append(f"{outcome.resumed_at} layers were taken up from a run before")
    lines.append(
        f"{outcome.bytes / 1e6:.1f} MB of weights in {outcome.output}, "
        f"from {outcome.source_bytes / 1e6:.1f} MB"
    )
    lines.append(f"format {outcome.config['quant_method']}, read by {outcome.readers}")
    lines.append(f"what it lost: hundredfold quality {outcome.model} {outcome.output}")
    return lines


def _by_part(errors: tuple[LayerError, ...]) -> dict[tuple[str, str], list[LayerError]]:
    """By the name's last part and recipe."""
    found: dict[tuple[str, str], list[LayerError]] = defaultdict(list)
    for error in errors:
        found[".".join(error.name.split(".")[-2:]), error.recipe].append(error)
    return found
