"""Ground truth of beam searches: transformers' own."""

from __future__ import annotations

from typing import Any


def search(model: Any, prompts: list[list[int]], **options: Any) -> list[tuple[list[list[int]], list[float]]]:
    """What transformers finds after each prompt: output ids, padding cut off, and scores.

    ``options`` are those of its ``generate``, ``num_beams`` and ``eos_token_id`` (a list) among them.
    The prompts are one batch, filled up on the left, where the mask hides it.
    """
    import torch

    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([[0] * fill + prompt for fill, prompt in zip(padding, prompts, strict=True)]),
            attention_mask=torch.tensor([[0] * fill + [1] * (longest - fill) for fill in padding]),
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
            pad_token_id=0,
            **options,
        )
    outputs = [_to_the_end(row[longest:], options["eos_token_id"]) for row in found.sequences.tolist()]
    scores = found.sequences_scores.tolist()
    each = len(outputs) // len(prompts)
    return [(outputs[i : i + each], scores[i : i + each]) for i in range(0, len(outputs), each)]


def _to_the_end(output: list[int], ends: list[int]) -> list[int]:
    """Up to the first id that ends it, this one included."""
    stops = [place for place, token in enumerate(output) if token in ends]
    return output[: stops[0] + 1] if stops else output
