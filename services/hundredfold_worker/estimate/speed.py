"""Tokens a second that memory and arithmetic allow, and what of it this server has been seen to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hundredfold.plugin import Encoding, LayerRole
from hundredfold_worker.estimate.machine import Machine
from hundredfold_worker.estimate.parts import Chooser, Outline
from hundredfold_worker.estimate.resident import Layout, token_bytes

REACHED = 0.53
"""Share of the ceiling that the default model reached through the door: 0.48 at one request, 0.58 at 256
(README's 76.6 and 489 tokens a second, against what this room then calls the ceiling)."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Decoding with so many sequences at once."""

    sequences: int
    ceiling: float
    """Tokens a second of all sequences, if reading and arithmetic were all."""
    bound: str
    """What binds: ``weights``, ``arithmetic`` or ``cache``."""

    @property
    def expected(self) -> float:
        """Tokens a second to count on."""
        return self.ceiling * REACHED


def speeds(
    outline: Outline,
    forms: Chooser,
    kept: Layout,
    machine: Machine,
    encoding: Encoding,
    context: int,
    sequences: Sequence[int],
) -> tuple[Speed, ...]:
    """One for each number of sequences, each ``context`` tokens long; none without a known bandwidth."""
    if not machine.read_bytes_per_s:
        return ()
    cache = _cache_bytes(outline, kept, encoding, context)
    return tuple(_speed(outline, forms, kept, machine, cache, count) for count in sequences)


def _speed(outline: Outline, forms: Chooser, kept: Layout, machine: Machine, cache: int, count: int) -> Speed:
    bandwidth = machine.read_bytes_per_s or 1.0
    read, arithmetic, products = 0.0, 0.0, 0.0
    for part in outline.parts:
        if part.role is LayerRole.TABLE:
            continue
        form = forms(part)
        size = kept.part(part, form, tied=False)
        # of the experts, those that any of the sequences goes through
        touched = 1 - (1 - part.used / part.copies) ** count
        reading = size * touched / bandwidth
        integers = kept.keeps_channels and kept.keeps(form)
        rate = machine.operations_per_s.get("int8" if integers else "float") or 0.0
        computing = 2.0 * part.multiplied * count / rate if rate else 0.0
        read, arithmetic = read + reading, arithmetic + computing
        products += max(reading, computing)
    attention = cache * count / bandwidth
    bound = "cache" if attention > products else "arithmetic" if arithmetic > read else "weights"
    return Speed(count, count / (products + attention), bound)


def _cache_bytes(outline: Outline, kept: Layout, encoding: Encoding, context: int) -> int:
    """What one sequence's step reads of the cache."""
    if not outline.windowed_layers:
        return token_bytes(outline, kept, encoding) * context
    return sum(
        kept.cache(layer, encoding) * min(context, layer.window or context) for layer in outline.caches
    )
