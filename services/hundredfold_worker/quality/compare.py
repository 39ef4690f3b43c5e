"""Both sides over the same text, chunk by chunk in step, so that no logits have to be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hundredfold.errors import StartError
from hundredfold_worker.model import LoadedModel, Selection
from hundredfold_worker.quality.beforehand import room_for_logits, vocabulary
from hundredfold_worker.quality.decode import DecodeSpeed, DecodingRows, tokens_per_second
from hundredfold_worker.quality.layers import LayerLoss, LayerLosses
from hundredfold_worker.quality.measures import Figures, Measures
from hundredfold_worker.quality.scored import Scored
from hundredfold_worker.quality.sides import Side
from hundredfold_worker.quality.text import HeldOut, cut, spread
from hundredfold_worker.startup import open_registries, start_model

Progress = Callable[[str, int, int], None]
"""Called with the phase, what is done of it, and of how much."""

_OTHER_TOKENS = "the two models read the text as different tokens; they cannot be compared"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared, over what."""

    sides: tuple[Side, Side]
    text: Path | None
    num_tokens: int
    window: int
    chunk: int
    layers: bool
    decode: int = 0
    """Tokens at the end of each window that are computed one at a time and scored; 0: all, in chunks."""
    batch: int = 16
    """Windows side by side then."""


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
    speed: DecodeSpeed | None = None
    """Where tokens were computed one at a time."""


def compare(plan: Plan, progress: Progress) -> Comparison:
    """Load both sides and run them. Raises ``StartError`` when one cannot, or they do not fit together."""
    if plan.decode:
        return _compare_decoding(plan, progress)
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
    facts = [_facts(side, scored.model) for side, scored in zip(plan.sides, sides, strict=True)]
    found = None if losses is None else losses.worst_first()
    return Comparison((facts[0], facts[1]), text, measures.figures(), found)


def _compare_decoding(plan: Plan, progress: Progress) -> Comparison:
    """One side after the other, so that one cache is in memory at a time; the first's logits are kept."""
    sizes = [vocabulary(side.settings.model) for side in plan.sides]
    _same_vocabulary(plan, sizes)
    room_for_logits(plan.decode, plan.batch, sizes[0])
    text = _spread(plan)
    measures = Measures()
    first_logits: list[torch.Tensor] = []
    facts: list[SideFacts] = []
    speeds: list[float] = []
    for number, side in enumerate(plan.sides):
        progress(f"load {side.text}", number, len(plan.sides))
        model = start_model(side.settings, open_registries(side.settings)).model
        if model.max_model_len < plan.window:
            raise StartError(f"window is {plan.window}, {side.text} takes {model.max_model_len} tokens")
        facts.append(_facts(side, model))
        rows = DecodingRows(model, side.settings.block_size, text.windows)
        prompt = plan.window - 1 - plan.decode
        seconds: list[float] = []
        with torch.inference_mode():
            for done in rows.read_prompts(prompt, plan.chunk):
                progress(f"prompts of {side.text}", done, plan.batch * prompt)
            for step, (logits, spent) in enumerate(rows.steps(prompt, plan.decode)):
                progress(f"tokens of {side.text}", step, plan.decode)
                seconds.append(spent)
                if number == 0:
                    first_logits.append(logits.cpu().clone())
                else:
                    targets = torch.tensor([ids[prompt + step + 1] for ids in text.windows])
                    measures.add(first_logits[step], logits.cpu(), targets)
        speeds.append(tokens_per_second(plan.batch, seconds))
        del rows, model
    speed = DecodeSpeed(plan.batch, plan.window, (speeds[0], speeds[1]))
    return Comparison((facts[0], facts[1]), text, measures.figures(), None, speed)


def _spread(plan: Plan) -> HeldOut:
    first, other = (side.settings.model for side in plan.sides)
    text = spread(first, plan.text, plan.batch, plan.window, plan.decode)
    if other != first:
        ids = spread(other, plan.text, plan.batch, plan.window, plan.decode)
        if ids.windows != text.windows:
            raise StartError(_OTHER_TOKENS)
    return text


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
    _same_vocabulary(plan, [model.vocab_size for model in models])
    other = plan.sides[1].settings.model
    if other != plan.sides[0].settings.model:
        ids = cut(other, plan.text, plan.num_tokens, max(map(len, text.windows)))
        if ids.windows != text.windows:
            raise StartError(_OTHER_TOKENS)


def _same_vocabulary(plan: Plan, sizes: list[int]) -> None:
    if sizes[0] != sizes[1]:
        raise StartError(
            f"{plan.sides[0].text} has a vocabulary of {sizes[0]}, {plan.sides[1].text} one of {sizes[1]}: "
            "only models with the same tokens can be compared"
        )


def _facts(side: Side, model: LoadedModel) -> SideFacts:
    runtime, per_block = model.runtime, model.cache_planner.bytes_per_block()
    per_token = per_block / side.settings.block_size
    return SideFacts(side.text, runtime.dtype, runtime.selections, runtime.weight_bytes, per_token)
