"""The estimate as a whole: from a model and wishes to every figure that is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hundredfold.errors import StartError
from hundredfold.plugin import LayerRole
from hundredfold.plugin.registry import Registry
from hundredfold_worker.estimate import at_load
from hundredfold_worker.estimate.advice import Case, Remedy, remedies
from hundredfold_worker.estimate.at_load import AtLoad
from hundredfold_worker.estimate.cache_size import of_attention
from hundredfold_worker.estimate.fit import CPU_CACHE_TOKENS, Load, fit
from hundredfold_worker.estimate.formats import GROUP, stored
from hundredfold_worker.estimate.machine import Wish, machine
from hundredfold_worker.estimate.placement import Device, Placed, place
from hundredfold_worker.estimate.resident import encoding_of, layout
from hundredfold_worker.estimate.sources import Source, find
from hundredfold_worker.estimate.speed import Speed, speeds

_ROWS = (1, 8, 64)
_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was told."""

    model: str
    wish: Wish
    kv_cache_dtype: str = "auto"
    quantization: str = "auto"
    quantization_exclude: tuple[str, ...] = ()
    activations: str = "auto"
    attention: str = "auto"
    max_model_len: int | None = None
    block_size: int = 32
    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 256
    concurrency: int | None = None
    context: int | None = None
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """Everything that is told."""

    source: Source
    case: Case
    forms: Mapping[str, int]
    """Weights in each form."""
    context: int
    speeds: tuple[Speed, ...]
    placed: tuple[Placed, ...]
    remedies: tuple[Remedy, ...]

    @property
    def capped(self) -> bool:
        """Whether a CPU's automatic cache would stop before what fits."""
        return self.case.machine.device == "cpu" and self.case.now.tokens > CPU_CACHE_TOKENS


def estimate(asked: Asked) -> Estimate:
    """Every figure. Raises ``StartError`` naming what cannot be read or does not fit together."""
    source = find(asked.model)
    outline, place_on = source.outline, machine(asked.wish)
    made = _made(asked, source, place_on.device)
    forms = made.forms
    encoding = encoding_of(asked.kv_cache_dtype, place_on.dtype)
    length = asked.max_model_len or outline.max_position
    if length > outline.max_position:
        raise StartError(f"max_model_len is {length}, the checkpoint was made for {outline.max_position}")
    batched = asked.max_num_batched_tokens or max(
        512 if place_on.device == "cpu" else 8192, asked.max_num_seqs
    )
    load = Load(length, asked.block_size, batched, asked.max_num_seqs, encoding, asked.concurrency)
    attention = None
    if asked.attention != "auto":
        attention = of_attention(
            asked.attention, place_on.device, place_on.dtype, asked.block_size, outline.num_layers
        )
    dtype_asked, meant_int8 = asked.wish.dtype != "auto", made.for_int8_inputs
    kept = layout(place_on.device, place_on.dtype, asked.activations, dtype_asked, meant_int8, attention)
    case = Case(outline, forms, kept, place_on, load, fit(outline, forms, kept, place_on, load))
    context = min(asked.context or _CONTEXT, length)
    rows = _rows(case, context, asked.concurrency)
    counts: Counter[str] = Counter()
    for part in outline.parts:
        if not (outline.tied_head and part.role is LayerRole.HEAD):
            counts[forms(part).label] += part.count
    return Estimate(
        source=source,
        case=case,
        forms=dict(counts.most_common()),
        context=context,
        speeds=speeds(outline, forms, kept, place_on, encoding, context, rows),
        placed=place(outline, case.now, kept, encoding, asked.devices, asked.concurrency or 1),
        remedies=remedies(case),
    )


def _made(asked: Asked, source: Source, device: str) -> AtLoad:
    """The forms in memory. A name that a format and a quantizer have means the format where it fits."""
    name, exclude = asked.quantization, asked.quantization_exclude
    if name == "auto":
        return AtLoad(source.stored)
    if name == at_load.FAST:
        return at_load.fast(device, asked.activations, exclude, source.stored)
    is_format, is_quantizer = name in Registry(GROUP).names(), at_load.is_quantizer(name)
    if not is_format and not is_quantizer:
        known = ", ".join((*Registry(at_load.GROUP).names(), *Registry(GROUP).names()))
        raise StartError(f"quantization '{name}' is not known; installed: auto, {at_load.FAST}, {known}")
    if is_format:
        try:
            return AtLoad(stored(source.checkpoint, name)[1])
        except StartError:
            if not is_quantizer:
                raise
    return at_load.named(name, exclude, source.stored)


def _rows(case: Case, context: int, concurrency: int | None) -> Sequence[int]:
    """Numbers of sequences to tell the speed of: some usual ones, and the most that fit or are asked for."""
    blocks = -(-context // case.load.block_size)
    most = min(case.load.max_num_seqs, max(1, case.now.blocks // blocks))
    rows = {count for count in _ROWS if count < most} | {most}
    return sorted(rows | ({concurrency} if concurrency is not None else set()))
