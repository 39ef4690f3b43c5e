"""What a worker would hold: weights, a step, and how many sequences of which length fit into the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hundredfold.plugin import Encoding
from hundredfold_worker.estimate.machine import Machine
from hundredfold_worker.estimate.parts import Chooser, Outline
from hundredfold_worker.estimate.resident import Layout, angle_bytes, token_bytes

CPU_CACHE_TOKENS = 65_536
"""Where a CPU's automatic cache stops."""


@dataclass(frozen=True, slots=True)
class Load:
    """How the worker is to be used."""

    max_model_len: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    encoding: Encoding
    concurrency: int | None = None
    """Sequences wanted at once; ``None`` for as many as fit."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes, and what fits."""

    budget: int
    by_layer: Mapping[int | None, int]
    """Weights in memory; ``None`` for what stands in no layer."""
    base: int
    step: int
    token: int
    """Of a token in the cache, all layers."""
    block: int
    blocks_per_sequence: int
    """Blocks of a sequence of ``max_model_len``."""
    block_size: int

    @property
    def weights(self) -> int:
        """Weights in memory, tables of angles included."""
        return sum(self.by_layer.values())

    @property
    def for_cache(self) -> int:
        """What is left for the cache; below 0 when even the weights do not fit."""
        return self.budget - self.weights - self.base - self.step

    @property
    def blocks(self) -> int:
        """Blocks of the cache that fit."""
        return max(0, self.for_cache) // self.block

    @property
    def tokens(self) -> int:
        """Tokens in the cache that fit."""
        return self.blocks * self.block_size

    @property
    def sequences(self) -> int:
        """Sequences of ``max_model_len`` that fit."""
        return self.blocks // self.blocks_per_sequence

    def needs(self, sequences: int) -> int:
        """Bytes in total with so many of the longest sequences."""
        return self.weights + self.base + self.step + sequences * self.blocks_per_sequence * self.block

    def length(self, sequences: int) -> int:
        """The longest that so many sequences can be at once."""
        return self.blocks // sequences * self.block_size


def fit(outline: Outline, forms: Chooser, kept: Layout, machine: Machine, load: Load) -> Fit:
    """Sizes of everything."""
    by_layer: dict[int | None, int] = {None: angle_bytes(outline, load.max_model_len) + outline.vectors * 4}
    for part in outline.parts:
        size = kept.part(part, forms(part), outline.tied_head)
        by_layer[part.layer] = by_layer.get(part.layer, 0) + size
    token = token_bytes(outline, kept, load.encoding)
    kept_tokens = load.max_model_len
    if outline.window is not None:  # blocks that left every window are free for others
        kept_tokens = min(kept_tokens, outline.window + load.max_num_batched_tokens)
    return Fit(
        budget=machine.budget,
        by_layer=by_layer,
        base=machine.base,
        step=step_bytes(outline, load),
        token=token,
        block=token * load.block_size,
        blocks_per_sequence=-(-kept_tokens // load.block_size),
        block_size=load.block_size,
    )


def step_bytes(outline: Outline, load: Load) -> int:
    """What the largest step takes on top: activations of every token, logits of every sequence.

    Rough: the worker measures it with trial steps.
    """
    widths = 6 * outline.hidden_size + 3 * outline.intermediate_size
    rows = min(load.max_num_seqs, load.max_num_batched_tokens)
    logits = rows * outline.vocab_size * 3 // 2  # of every seat, and what sampling keeps beside them
    return 4 * (load.max_num_batched_tokens * widths + logits)
