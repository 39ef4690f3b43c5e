"""Which layers to keep wider: those whose error stands out, as patterns that a command takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hundredfold_worker.quality.layers import LayerLoss

STANDS_OUT = 1.5
"""Times the middle layer's error."""
MOST_PATTERNS = 8
_MOST_OF_A_KIND = 0.5
"""Share of a kind's layers from which on the whole kind is named."""


def suggest(losses: Sequence[LayerLoss]) -> tuple[str, ...]:
    """Patterns, the worst first; none where no layer stands out. ``losses`` are the largest first."""
    changed = [loss for loss in losses if loss.error > 0]
    if not changed:
        return ()
    middle = changed[len(changed) // 2].error
    out = [loss.pattern for loss in changed if loss.error > STANDS_OUT * middle]
    kinds, there = Counter(map(kind_of, out)), Counter(kind_of(loss.pattern) for loss in losses)
    whole = {
        kind for kind, count in kinds.items() if there[kind] > 1 and count >= _MOST_OF_A_KIND * there[kind]
    }
    named = [f"*.{kind_of(pattern)}" if kind_of(pattern) in whole else pattern for pattern in out]
    return tuple(dict.fromkeys(named))[:MOST_PATTERNS]


def kind_of(pattern: str) -> str:
    """A product's name without its layer: ``mlp.down_proj``."""
    parts = pattern.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return pattern if number is None else ".".join(parts[number + 1 :])


def layer_of(pattern: str) -> int | None:
    """A product's layer; ``None`` for the output layer."""
    return next((int(part) for part in pattern.split(".") if part.isdigit()), None)
