"""How narrowly a beam search chose: between two libraries' rounding, a choice by less than that is open."""

from __future__ import annotations

from typing import Any

import torch


def narrowest_choice(model: Any, prompt: list[int], width: int, num_tokens: int) -> float:
    """The least distance between the last beam kept and the first one dropped, in summed log probabilities.

    A plain search in float64 that no id ends, by a transformers model.
    """
    exact = model.double()
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    narrowest = float("inf")
    for _ in range(num_tokens):
        with torch.inference_mode():
            logits = exact(torch.tensor([prompt + output for _, output in live])).logits[:, -1]
        sums = logits.log_softmax(-1) + torch.tensor([[total] for total, _ in live], dtype=torch.float64)
        best, places = sums.flatten().topk(width + 1)
        narrowest = min(narrowest, (best[-2] - best[-1]).item())
        vocabulary = logits.shape[1]
        live = [
            (total, [*live[place // vocabulary][1], place % vocabulary])
            for total, place in zip(best[:-1].tolist(), places[:-1].tolist(), strict=True)
        ]
    model.float()
    return narrowest


def summed_log_probability(model: Any, prompt: list[int], output: list[int]) -> float:
    """Of ``output`` after ``prompt``."""
    with torch.inference_mode():
        scores = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return float(scores.gather(1, torch.tensor(output)[:, None]).sum())
