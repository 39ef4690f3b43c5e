"""What is lost when late tokens attend to a part of the blocks, by the way in which these are chosen.

In torch, over the default model in fp32 as transformers computes it: the window's prompt is exact, its last
tokens are computed in one go. Says for each way how often the best next token stays the same, what the next
token's distribution loses in KL divergence, and the perplexity. ``true`` weights are what no choice can beat.

    PYTHONPATH=tests python tests/profiling/sparse_choices.py --window 8192 --decode 384
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, DynamicCache

from hundredfold.models import DEFAULT_MODEL, resolve
from hundredfold_worker.quality.text import cut
from support.reference import load_reference

CHUNK = 2048

Weigh = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Of a group's queries, one head's keys, the positions allowed and a block's size: a weight for each query
and block. Shapes: [heads, queries, head_dim], [keys, head_dim], [queries, keys] -> [queries, blocks].
"""


def by_bounds(queries: torch.Tensor, keys: torch.Tensor, allowed: torch.Tensor, size: int) -> torch.Tensor:
    """The largest score that a key within the block's smallest and largest numbers could have (Quest,
    arXiv:2406.10774).
    """
    blocks = keys[: len(keys) // size * size].view(-1, size, keys.shape[-1])
    high, low = blocks.amax(1), blocks.amin(1)
    return (queries.clamp(min=0) @ high.T + queries.clamp(max=0) @ low.T).amax(0)


def by_weights(queries: torch.Tensor, keys: torch.Tensor, allowed: torch.Tensor, size: int) -> torch.Tensor:
    """What the softmax gives the block's keys, over the group's heads together."""
    scores = (queries @ keys.T).masked_fill(~allowed, -math.inf)
    weights = torch.softmax(scores, -1)[..., : len(keys) // size * size]
    return weights.unflatten(-1, (-1, size)).sum(-1).sum(0)


def by_rounded_keys(bits: int) -> Weigh:
    """The same from keys rounded to so many bits, symmetric, with a scale by token."""
    levels = 2 ** (bits - 1) - 1

    def weigh(queries: torch.Tensor, keys: torch.Tensor, allowed: torch.Tensor, size: int) -> torch.Tensor:
        scales = keys.abs().amax(-1, keepdim=True) / levels
        return by_weights(queries, (keys / scales).round() * scales, allowed, size)

    return weigh


WAYS: dict[str, Weigh] = {
    "bounds": by_bounds,
    "true weights": by_weights,
    "weights by 4-bit keys": by_rounded_keys(4),
    "weights by 2-bit keys": by_rounded_keys(2),
}


class Part:
    """Attention of transformers' kind. The last ``decode`` tokens see the share ``keep`` of their whole
    blocks, the newest of them always, all when ``weigh`` is None.
    """

    def __init__(self, decode: int, size: int) -> None:
        self.decode, self.size = decode, size
        self.keep = 1.0
        self.weigh: Weigh | None = None

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Shapes: [1, heads, tokens, head_dim] -> [1, tokens, heads, head_dim]."""
        tokens, total = query.shape[2], key.shape[2]
        allowed = torch.arange(total) <= torch.arange(total - tokens, total)[:, None]
        grouped = query[0].unflatten(0, (key.shape[1], -1))
        outputs = []
        for queries, keys, values in zip(grouped, key[0], value[0], strict=True):
            mask = allowed
            if tokens == self.decode and self.weigh is not None:
                mask = allowed & self._seen(self.weigh(queries * scaling, keys, allowed, self.size), total)
            outputs.append(
                functional.scaled_dot_product_attention(queries, keys, values, mask, scale=scaling)
            )
        return torch.cat(outputs).transpose(0, 1)[None], None

    def _seen(self, weights: torch.Tensor, total: int) -> torch.Tensor:
        """[queries, keys]: in one of the heaviest blocks, or in none that is whole."""
        queries, blocks = weights.shape
        whole = (torch.arange(total - queries, total) + 1) // self.size
        number = torch.arange(blocks)
        weights = weights.masked_fill(number >= whole[:, None], -math.inf)
        weights = weights.masked_fill(number == whole[:, None] - 1, math.inf)
        rank = weights.argsort(-1, descending=True).argsort(-1)
        kept = (rank < (whole * self.keep).round()[:, None]) | (number >= whole[:, None])
        return functional.pad(kept.repeat_interleave(self.size, -1), (0, total % self.size), value=True)


@torch.inference_mode()
def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--window", type=int, default=8192)
    parser.add_argument("--decode", type=int, default=384, help="last tokens, computed from a part")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--keep", type=float, action="append", help="shares of the blocks; 0.25 and 0.125")
    args = parser.parse_args()
    part = Part(args.decode, args.block_size)
    AttentionInterface.register("part", part)
    model = load_reference(str(resolve(DEFAULT_MODEL).path)).model
    model.set_attn_implementation("part")
    ids = torch.tensor([cut(DEFAULT_MODEL, None, args.window, args.window).windows[0]])
    prompt, last = ids[:, : -args.decode], ids[:, -args.decode :]
    cache = DynamicCache()
    for chunk in prompt.split(CHUNK, 1):
        model.model(chunk, past_key_values=cache)

    def scores() -> torch.Tensor:
        hidden = model.model(last, past_key_values=cache)[0][0, :-1]
        cache.crop(-args.decode)
        return torch.log_softmax(model.lm_head(hidden), -1)

    def loss(found: torch.Tensor) -> float:
        return -found.gather(1, last[0, 1:, None]).mean().item()

    exact = scores()
    print(f"perplexity of the last {args.decode - 1} of {args.window} tokens: {math.exp(loss(exact)):.2f}")
    print("\n| share | blocks chosen by | same best token | KL | perplexity |\n|---|---|---:|---:|---:|")
    for part.keep in args.keep or (0.25, 0.125):
        for name, part.weigh in WAYS.items():
            found = scores()
            same = (found.argmax(-1) == exact.argmax(-1)).float().mean().item()
            divergence = (exact.exp() * (exact - found)).sum(-1).mean().item()
            change = math.expm1(loss(found) - loss(exact))
            print(f"| {part.keep:g} | {name} | {same:.1%} | {divergence:.5f} | {change:+.2%} |", flush=True)


if __name__ == "__main__":
    main()
