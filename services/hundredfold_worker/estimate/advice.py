"""What helps when memory is short: each remedy alone, the cheapest for the user first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hundredfold.plugin import Encoding, LayerOutline, LayerRole, WeightForm
from hundredfold.plugin.forms import grouped
from hundredfold_worker.estimate.at_load import for_int8
from hundredfold_worker.estimate.fit import Fit, Load, fit
from hundredfold_worker.estimate.machine import Machine
from hundredfold_worker.estimate.parts import Chooser, Outline, Part
from hundredfold_worker.estimate.resident import CACHE, Layout

_SHORTER_CACHES = (Encoding.INT8,)
_LEAST_LENGTH = 256
_MIB = 1 << 20
_WINDOW = 3
"""Layers in memory while others lie in a file: the one that is computed, and two ahead."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change."""

    setting: str
    """As it is told to the worker."""
    frees: int
    """Bytes, with the sequences that are wanted."""
    enough: bool
    """Whether everything wanted fits then."""
    sequences: int
    """Of the longest that fit then; of the new longest where that is what changes."""
    costs: str


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be helped."""

    outline: Outline
    forms: Chooser
    kept: Layout
    machine: Machine
    load: Load
    now: Fit

    @property
    def wanted(self) -> int:
        """Sequences at once: as asked, else what fits, at least one."""
        return self.load.concurrency or max(1, min(self.now.sequences, self.load.max_num_seqs))

    @property
    def needs(self) -> int:
        """Bytes in total for them."""
        return self.now.needs(self.wanted)

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.needs <= self.now.budget


def remedies(case: Case) -> tuple[Remedy, ...]:
    """Everything that frees something, in the order in which to try it."""
    found = [*_cache(case), *_length(case), *_sequences(case), *_weights(case)]
    found += [*_offload(case), *_share(case)]
    return tuple(remedy for remedy in found if remedy.frees > 0)


def _remedy(case: Case, setting: str, then: Fit, wanted: int, costs: str) -> Remedy:
    needs = then.needs(wanted)
    return Remedy(setting, case.needs - needs, needs <= then.budget, then.sequences, costs)


def _cache(case: Case) -> Iterator[Remedy]:
    own, costs = case.load.encoding, "some tenths of a percent of perplexity"
    for shorter in _SHORTER_CACHES:
        if CACHE[shorter].bits < CACHE[own].bits:
            load = replace(case.load, encoding=shorter)
            then = _again(case, load=load)
            yield _remedy(case, f"--kv-cache-dtype {shorter.value}", then, case.wanted, costs)


def _length(case: Case) -> Iterator[Remedy]:
    load, now = case.load, case.now
    fitting = now.length(case.wanted)
    wanted = fitting if not case.fits else load.max_model_len // 2
    length = max(_LEAST_LENGTH, wanted // load.block_size * load.block_size)
    if length < load.max_model_len:
        then = _again(case, load=replace(load, max_model_len=length))
        yield _remedy(case, f"--max-model-len {length}", then, case.wanted, "longer prompts are refused")


def _sequences(case: Case) -> Iterator[Remedy]:
    fewer = case.now.sequences if not case.fits else case.wanted // 2
    if 1 <= fewer < case.wanted:
        load = replace(case.load, max_num_seqs=min(fewer, case.load.max_num_seqs))
        then = _again(case, load=load)
        yield _remedy(case, f"--max-num-seqs {fewer}", then, fewer, "the others wait in the queue")


def _weights(case: Case) -> Iterator[Remedy]:
    linear = [part for part in case.outline.parts if part.role is not LayerRole.TABLE]
    widest = max((_bits(case, part) for part in linear), default=0)
    eight = for_int8(case.forms) if widest > 10 and case.kept.keeps_channels else None
    if eight is not None:
        name, made = eight
        then = _again(case, forms=made.forms)
        yield _remedy(case, f"--quantization {name}", then, case.wanted, "about 1 % of perplexity")
    if widest > 6 and case.kept.keeps_groups:

        def four(part: Part) -> WeightForm:
            if part.role is not LayerRole.LINEAR or _bits(case, part) <= 6:
                return case.forms(part)
            return grouped("int", LayerOutline(part.name, (part.rows, part.columns)), 4, 64, 0)

        then = _again(case, forms=four)
        yield _remedy(case, "hundredfold quantize --bits 4", then, case.wanted, "some percent of perplexity")


def _offload(case: Case) -> Iterator[Remedy]:
    """Layers in a file: what stays is the output layer, tables, and the layers that are read ahead."""
    if case.machine.device != "cpu":
        return
    layers = {number: size for number, size in case.now.by_layer.items() if number is not None}
    table = next(part for part in case.outline.parts if part.role is LayerRole.TABLE)
    outside = case.now.by_layer.get(None, 0) - case.kept.part(table, case.forms(table), tied=False)
    window = _WINDOW * max(layers.values(), default=0)
    if outside + window < case.now.weights:
        then = replace(case.now, by_layer={None: outside + window})
        least = -(-(outside + window) // _MIB)
        costs = "each step reads the layers from a file"
        yield _remedy(case, f"--weight-memory {least}MiB", then, case.wanted, costs)


def _share(case: Case) -> Iterator[Remedy]:
    share = 0.9 if case.machine.device == "cpu" else 0.95
    if case.machine.utilization < share:
        then = replace(case.now, budget=int(case.machine.total * share))
        yield Remedy(
            f"--memory-utilization {share:g}",
            then.budget - case.now.budget,
            case.needs <= then.budget,
            then.sequences,
            "less for others on the machine",
        )


def _bits(case: Case, part: Part) -> float:
    """Bits of a weight in memory."""
    return 8 * case.kept.part(part, case.forms(part), tied=False) / max(1, part.count)


def _again(case: Case, load: Load | None = None, forms: Chooser | None = None) -> Fit:
    return fit(case.outline, forms or case.forms, case.kept, case.machine, load or case.load)
