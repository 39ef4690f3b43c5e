"""Both sides over the same text, chunk by chunk in step, so that no logits have to be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hundredfold.errors import StartError
from hundredfold_worker.model import LoadedModel, Selection
from hundredfold_worker.quality.layers import LayerLoss, LayerLosses
from hundredfold_worker.quality.measures import Figures, Measures
from hundredfold_worker.quality.scored import Scored
from hundredfold_worker.quality.sides import Side
from hundredfold_worker.quality.text import HeldOut, cut
from hundredfold_worker.startup import open_registries, start_model

Progress = Callable[[str, int, int], None]
"""Called with the phase, what is done of it, and of how much."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared, over what."""

    sides: tuple[Side, Side]
    text: Path | None
    num_tokens: int
    window: int
    chunk: int
    layers: bool


@dataclass(frozen=True, slots=True)
class SideFacts:
    """One side as it ran."""

    side: str
    dtype: str
    choices: tuple[Selection, ...]
    weight_bytes: int
    cache_bytes_per_token: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome."""

    sides: tuple[SideFacts, SideFacts]
    text: HeldOut
    figures: Figures
    layers: tuple[LayerLoss, ...] | None
    """Worst first; ``None`` when nobody asked."""


def compare(plan: Plan, progress: Progress) -> Comparison:
    """Load both sides and run them. Raises ``StartError`` when one cannot, or they do not fit together."""
    models = []
    for number, side in enumerate(plan.sides):
        progress(f"load {side.text}", number, len(plan.sides))
        models.append(start_model(side.settings, open_registries(side.settings)).model)
    window = min(plan.window, *(model.max_model_len for model in models))
    text = cut(plan.sides[0].settings.model, plan.text, plan.num_tokens, window)
    _check(plan, models, text)
    sides = [
        Scored(model, side.settings.block_size, window)
        for model, side in zip(models, plan.sides, strict=True)
    ]
    losses = LayerLosses(models[0], models[1]) if plan.layers else None
    measures, done = Measures(), 0
    with torch.inference_mode():
        for ids in text.windows:
            for first in range(0, len(ids), plan.chunk):
                progress("score", done, text.num_scored)
                done += _score(sides, measures, text, ids, first, min(plan.chunk, len(ids) - first))
            if losses is not None:
                progress("layers", done, text.num_scored)
                losses.add(torch.tensor(ids[: plan.chunk]))
    facts = [_facts(side, scored) for side, scored in zip(plan.sides, sides, strict=True)]
    found = None if losses is None else losses.worst_first()
    return Comparison((facts[0], facts[1]), text, measures.figures(), found)


def _score(
    sides: list[Scored], measures: Measures, text: HeldOut, ids: tuple[int, ...], first: int, count: int
) -> int:
    """One chunk; returns how many ids it scored: each by the position before it."""
    chunk = torch.tensor(ids[first : first + count])
    a, b = (side.logits(chunk, first) for side in sides)
    start = max(text.unscored - 1 - first, 0)
    end = min(count, len(ids) - 1 - first)
    if start >= end:
        return 0
    targets = torch.tensor(ids[first + start + 1 : first + end + 1], device=a.device)
    measures.add(a[start:end], b[start:end].to(a.device), targets)
    return end - start


def _check(plan: Plan, models: list[LoadedModel], text: HeldOut) -> None:
    sizes = [model.vocab_size for model in models]
    if sizes[0] != sizes[1]:
        raise StartError(
            f"{plan.sides[0].text} has a vocabulary of {sizes[0]}, {plan.sides[1].text} one of {sizes[1]}: "
            "only models with the same tokens can be compared"
        )
    other = plan.sides[1].settings.model
    if other != plan.sides[0].settings.model:
        ids = cut(other, plan.text, plan.num_tokens, max(map(len, text.windows)))
        if ids.windows != text.windows:
            raise StartError("the two models read the text as different tokens; they cannot be compared")


def _facts(side: Side, scored: Scored) -> SideFacts:
    runtime = scored.model.runtime
    return SideFacts(
        side.text, runtime.dtype, runtime.selections, runtime.weight_bytes, scored.cache_bytes_per_token
    )
