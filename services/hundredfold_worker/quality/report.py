"""The comparison for people and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hundredfold_worker.heat import cells, scale
from hundredfold_worker.quality.compare import Comparison, SideFacts
from hundredfold_worker.quality.grid import grid_of
from hundredfold_worker.quality.layers import LayerLoss
from hundredfold_worker.quality.suggest import suggest

MOST_LAYERS = 8
_SHOWN = ("quantization", "activations", "kernels", "kv_cache", "attention")
_MIB = 1 << 20


def passes(comparison: Comparison, limit: float | None) -> bool | None:
    """Whether the increase of perplexity stays within ``limit``, a share; ``None`` without one."""
    return None if limit is None else comparison.figures.perplexity_increase <= limit


def to_json(comparison: Comparison, limit: float | None) -> str:
    """One object; sizes in bytes, shares as shares."""
    text = comparison.text
    found: dict[str, Any] = {
        "sides": [asdict(side) for side in comparison.sides],
        "text": {
            "name": text.name,
            "sha256_12": text.digest,
            "windows": [len(window) for window in text.windows],
            "scored_tokens": text.num_scored,
        },
        **asdict(comparison.figures),
        "decode": None if comparison.speed is None else asdict(comparison.speed),
        "layers": None if comparison.layers is None else [asdict(loss) for loss in comparison.layers],
        "keep_wider": list(suggest(comparison.layers or ())),
        "max_perplexity_increase": limit,
        "pass": passes(comparison, limit),
    }
    return json.dumps(found, indent=2)


def render(comparison: Comparison, limit: float | None) -> RenderableType:
    """Tables for a terminal."""
    text, longest = comparison.text, max(map(len, comparison.text.windows))
    about = Text(
        f"{text.num_scored} tokens in windows of {longest}, from {text.name} (sha256 {text.digest})",
        style="dim",
    )
    parts: list[RenderableType] = [_sides(comparison), _figures(comparison), about]
    if comparison.layers is not None:
        parts += [_layers(comparison.layers), _heat(comparison.layers), *_advice(comparison.layers)]
    if (verdict := _verdict(comparison, limit)) is not None:
        parts.append(verdict)
    return Group(*parts)


def _sides(comparison: Comparison) -> Table:
    a, b = comparison.sides
    table = Table("", f"A  {a.side}", f"B  {b.side}", "B / A", title="What runs", title_justify="left")
    for subject in ("dtype", *_SHOWN):
        table.add_row(subject, _chosen(a, subject), _chosen(b, subject), "")
    table.add_row(
        "weights", _size(a.weight_bytes), _size(b.weight_bytes), _ratio(a.weight_bytes, b.weight_bytes)
    )
    table.add_row(
        "cache per token",
        _size(a.cache_bytes_per_token),
        _size(b.cache_bytes_per_token),
        _ratio(a.cache_bytes_per_token, b.cache_bytes_per_token),
    )
    return table


def _figures(comparison: Comparison) -> Table:
    figures = comparison.figures
    table = Table("", "A", "B", "B against A", title="What it costs", title_justify="left")
    first, second = figures.perplexity
    table.add_row(
        "perplexity",
        f"{first:.3f}",
        f"{second:.3f}",
        f"{figures.perplexity_increase:+.2%} ± {figures.perplexity_increase_error:.2%}",
    )
    low, high = figures.top1_interval
    table.add_row("same best token", "", "", f"{figures.top1_agreement:.2%}  ({low:.1%} to {high:.1%})")
    if figures.sure_agreement is not None:
        table.add_row(
            "the same where A is sure", "", "", f"{figures.sure_agreement:.2%}  of {figures.sure_positions}"
        )
    table.add_row(
        "KL of the next token", "", "", f"{figures.kl_mean:.5f} nats; 99 % below {figures.kl_99th:.4f}"
    )
    if comparison.speed is not None:
        a, b = comparison.speed.tokens_per_second
        table.add_row("tokens/s", f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f} x, {comparison.speed.rows} at once")
    table.add_row(
        "cosine of the logits", "", "", f"{figures.cosine_mean:.6f}; least {figures.cosine_least:.5f}"
    )
    return table


def _layers(losses: tuple[LayerLoss, ...]) -> Table:
    table = Table("layer", "error", "cosine", title="Worst layers, each by itself", title_justify="left")
    for loss in losses[:MOST_LAYERS]:
        table.add_row(loss.pattern, f"{loss.error:.2%}", f"{loss.cosine:.6f}")
    return table


def _heat(losses: tuple[LayerLoss, ...]) -> RenderableType:
    """A cell for each product: its kind downwards, its layer across."""
    grid = grid_of(losses)
    most = max((loss.error for loss in losses), default=0.0)
    width = 2 if len(grid.layers) <= 24 else 1
    table = Table.grid(padding=(0, 1))
    for kind, errors in zip(grid.kinds, grid.errors, strict=True):
        table.add_row(Text(kind, style="dim"), cells(errors, 0.0, most, width))
    return Group(
        "", table, scale(0.0, 100 * most, f"layers 0 to {grid.layers[-2]} and the output; error in %"), ""
    )


def _advice(losses: tuple[LayerLoss, ...]) -> list[RenderableType]:
    """Which layers to keep wider, as both commands take it."""
    out = suggest(losses)
    if not out:
        return [Text("No layer stands out: keeping single ones wider would gain little.")]
    rules = " ".join(f"--rule '{pattern}=none'" for pattern in out)
    return [
        Text("To keep wider what stands out:", style="bold"),
        Text(f"  hundredfold worker   --quantization-exclude '{','.join(out)}'"),
        Text(f"  hundredfold quantize {rules}"),
    ]


def _verdict(comparison: Comparison, limit: float | None) -> Text | None:
    passed = passes(comparison, limit)
    if passed is None or limit is None:
        return None
    increase = f"perplexity {comparison.figures.perplexity_increase:+.2%}, limit {limit:+.2%}"
    return Text(f"PASS  {increase}", style="green") if passed else Text(f"FAIL  {increase}", style="bold red")


def _chosen(side: SideFacts, subject: str) -> str:
    if subject == "dtype":
        return side.dtype
    return ", ".join(dict.fromkeys(c.chosen for c in side.choices if c.subject == subject)) or "-"


def _size(count: float) -> str:
    return f"{count / _MIB:.1f} MiB" if count >= _MIB else f"{count:.0f} B"


def _ratio(first: float, second: float) -> str:
    return f"{second / first:.2f}" if first else "-"
