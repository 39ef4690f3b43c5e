"""How narrowly a beam search chose: between two libraries' rounding, a choice by less than that is open."""

from __future__ import annotations

from typing import Any

import torch


def narrowest_choice(model: Any, prompt: list[int], width: int, num_tokens: int) -> float:
    """The least distance between the last beam kept and the first one dropped, in summed log probabilities.

    A plain search in float64 that no id ends, by a transformers model.
    """
    exact = model.double()
    rows, sums, cache = torch.tensor([prompt]), torch.zeros(1, 1, dtype=torch.float64), None
    narrowest = float("inf")
    for _ in range(num_tokens):
        with torch.inference_mode():
            result = exact(rows, past_key_values=cache, use_cache=True)
        cache, scores = result.past_key_values, result.logits[:, -1].log_softmax(-1)
        best, places = (sums + scores).flatten().topk(width + 1)
        narrowest = min(narrowest, (best[-2] - best[-1]).item())
        parents, tokens = places[:-1] // scores.shape[1], places[:-1] % scores.shape[1]
        cache.reorder_cache(parents)
        rows, sums = tokens[:, None], best[:-1, None]
    model.float()
    return narrowest


def summed_log_probability(model: Any, prompt: list[int], output: list[int]) -> float:
    """Of ``output`` after ``prompt``."""
    with torch.inference_mode():
        scores = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return float(scores.gather(1, torch.tensor(output)[:, None]).sum())
