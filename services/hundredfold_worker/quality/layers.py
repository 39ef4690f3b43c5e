"""What each layer loses by itself: both sides' layer on the input that the first side's has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from hundredfold.errors import StartError
from hundredfold.plugin import AttentionBatch
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.model.decoder import Decoder, DecoderLayer, Projection

PARTS = {
    "qkv": "self_attn.[qkv]_proj",
    "attention_output": "self_attn.o_proj",
    "gate_up": "mlp.[gu]*_proj",
    "down": "mlp.down_proj",
}
"""A decoder layer's products, with the pattern that excepts them from quantizing."""

HEAD = "lm_head"


@dataclass(frozen=True, slots=True)
class LayerLoss:
    """One product."""

    pattern: str
    """What excepts it: a pattern for ``quantization_exclude``."""
    cosine: float
    """Between both sides' outputs for the same input, over all tokens."""
    error: float
    """‖B - A‖ / ‖A‖ of them."""


@dataclass(slots=True)
class _Sums:
    product: float = 0.0
    first: float = 0.0
    second: float = 0.0
    difference: float = 0.0

    def add(self, a: Tensor, b: Tensor) -> None:
        a, b = a.double(), b.double()
        self.product += float((a * b).sum())
        self.first += float((a * a).sum())
        self.second += float((b * b).sum())
        self.difference += float(((b - a) ** 2).sum())


class LayerLosses:
    """Runs the first side's decoder with an ear at every product."""

    def __init__(self, first: LoadedModel, second: LoadedModel) -> None:
        a, b = _decoder(first), _decoder(second)
        if len(a.layers) != len(b.layers):
            raise StartError(f"layers cannot be compared: one side has {len(a.layers)}, one {len(b.layers)}")
        self._sums: dict[str, _Sums] = {}
        self._second_dtype = second.dtype
        layers = []
        for index, (own, other) in enumerate(zip(a.layers, b.layers, strict=True)):
            heard: dict[str, Any] = {
                part: self._hear(f"model.layers.{index}.{pattern}", getattr(own, part), getattr(other, part))
                for part, pattern in PARTS.items()
            }
            layers.append(replace(own, **heard))
        head = self._hear(HEAD, a.head, b.head)
        self._decoder = replace(a, layers=_Beside(layers, a.layers, b.layers), head=head)
        self._device = first.device

    def add(self, ids: Tensor) -> None:
        """One sequence int64[n] from its beginning."""
        count = len(ids)
        planner = self._decoder.cache_planner
        blocks = -(-count // planner.spec.block_size)
        positions = torch.arange(count, device=self._device)
        batch = AttentionBatch(
            query_lens=[count],
            seq_lens=[count],
            block_tables=torch.arange(blocks, dtype=torch.int32, device=self._device)[None, :],
            slot_mapping=positions,
            positions=positions,
        )
        self._decoder.forward(ids.to(self._device), batch, planner.allocate(blocks), positions)

    def worst_first(self) -> tuple[LayerLoss, ...]:
        """Every product, the largest error first."""
        return tuple(sorted(self._losses(), key=lambda loss: -loss.error))

    def _losses(self) -> Iterator[LayerLoss]:
        for pattern, sums in self._sums.items():
            size = math.sqrt(sums.first * sums.second)
            cosine = sums.product / size if size else 1.0
            yield LayerLoss(pattern, cosine, math.sqrt(sums.difference / sums.first) if sums.first else 0.0)

    def _hear(self, pattern: str, own: Any, other: Callable[[Tensor], Tensor]) -> Any:
        sums = self._sums.setdefault(pattern, _Sums())

        def both(x: Tensor) -> Tensor:
            y: Tensor = own(x)
            sums.add(y, other(x.to(self._second_dtype)))
            return y

        if isinstance(own, Projection):
            return Projection((_Heard(both),), (sum(own.widths),))
        return _Heard(both)


class _Beside(tuple[DecoderLayer, ...]):
    """Layers that call those of both sides; going through them goes through both, so that each may stream."""

    sides: tuple[tuple[DecoderLayer, ...], ...]

    def __new__(cls, layers: Iterable[DecoderLayer], *sides: tuple[DecoderLayer, ...]) -> Self:
        made = super().__new__(cls, layers)
        made.sides = sides
        return made

    def __iter__(self) -> Iterator[DecoderLayer]:
        for _, layer in zip(zip(*self.sides, strict=True), super().__iter__(), strict=True):
            yield layer


@dataclass(frozen=True, slots=True)
class _Heard:
    """A product that is listened to."""

    run: Callable[[Tensor], Tensor]
    nbytes: int = 0
    recipe: str = ""

    def __call__(self, x: Tensor) -> Tensor:
        return self.run(x)


def _decoder(model: LoadedModel) -> Decoder:
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder):
        raise StartError("layers can be compared only of a model that runs in this process")
    return decoder
