"""What a comparison of layers leads to: patterns to keep wider, a heat map, an exit code."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from hundredfold.errors import StartError
from hundredfold_worker.heat import cells, colour
from hundredfold_worker.quality.chart import draw
from hundredfold_worker.quality.compare import Comparison, SideFacts
from hundredfold_worker.quality.grid import grid_of
from hundredfold_worker.quality.layers import HEAD, PARTS, LayerLoss
from hundredfold_worker.quality.measures import Figures
from hundredfold_worker.quality.report import render
from hundredfold_worker.quality.suggest import suggest
from hundredfold_worker.quality.text import HeldOut

LAYERS = 6


def losses(errors: dict[str, float]) -> tuple[LayerLoss, ...]:
    """Every product at 1 %, but for these."""
    names = [f"model.layers.{layer}.{pattern}" for layer in range(LAYERS) for pattern in PARTS.values()]
    found = [LayerLoss(name, 0.99, errors.get(name, 0.01)) for name in (*names, HEAD)]
    return tuple(sorted(found, key=lambda loss: -loss.error))


def compared(layers: tuple[LayerLoss, ...] | None) -> Comparison:
    figures = Figures(100, (12.0, 12.5), 0.0417, 0.01, 0.02, 0.1, 0.99, 0.9, 0.95, (0.9, 0.97), 50, 0.99)
    sides = [SideFacts(name, "fp32", (), 1 << 20, 1024.0) for name in ("m:dtype=fp32", "m:quantization=int8")]
    return Comparison((sides[0], sides[1]), HeldOut("text", "0" * 12, ((1, 2),), 1), figures, layers)


def test_what_stands_out_is_named_worst_first() -> None:
    worst = {"model.layers.2.mlp.down_proj": 0.09, "lm_head": 0.03}
    assert suggest(losses(worst)) == ("model.layers.2.mlp.down_proj", "lm_head")
    assert suggest(losses({})) == ()
    assert suggest(()) == ()


def test_most_layers_of_a_kind_become_one_pattern() -> None:
    worst = {f"model.layers.{layer}.mlp.down_proj": 0.05 + layer / 100 for layer in range(3)}
    one = {"model.layers.5.self_attn.o_proj": 0.04}
    assert suggest(losses(worst | one)) == ("*.mlp.down_proj", "model.layers.5.self_attn.o_proj")


def test_losses_lie_by_kind_and_layer() -> None:
    grid = grid_of(losses({"model.layers.3.mlp.down_proj": 0.5, "lm_head": 0.25}))
    assert grid.layers == ("0", "1", "2", "3", "4", "5", "out")
    assert grid.errors[grid.kinds.index("down")] == (0.01, 0.01, 0.01, 0.5, 0.01, 0.01, None)
    assert grid.errors[-1] == (None,) * LAYERS + (0.25,)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "layers.png"
    draw(compared(losses({"model.layers.3.mlp.down_proj": 0.5})), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(StartError, match="--layers"):
        draw(compared(None), path)
    with pytest.raises(StartError, match="cannot be written"):
        draw(compared(losses({})), tmp_path / "none" / "layers.png")


def test_both_commands_are_told_what_to_keep() -> None:
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(render(compared(losses({"model.layers.2.mlp.down_proj": 0.09})), 0.01))
    shown = console.export_text()
    assert "--quantization-exclude 'model.layers.2.mlp.down_proj'" in shown
    assert "--rule 'model.layers.2.mlp.down_proj=none'" in shown
    assert "FAIL" in shown


def test_cells_have_colours_by_value() -> None:
    assert colour(0, 0, 1) != colour(0.5, 0, 1) != colour(1, 0, 1)
    assert colour(2, 0, 1) == colour(1, 0, 1)
    assert cells([0.0, None, float("nan")], 0, 1, 2).plain == "██····"
