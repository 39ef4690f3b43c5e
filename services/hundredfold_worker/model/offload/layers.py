"""Builds a decoder's layers within a budget: as many as fit stay in memory, the others lie in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hundredfold.plugin import Linear, StoredLinear
from hundredfold_worker.model.decoder import DecoderLayer
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.loaded import Selection
from hundredfold_worker.model.offload.spill import Region, SpillFile
from hundredfold_worker.model.offload.stream import AHEAD, Stream

_MIB = 1 << 20


class StreamedLayers(tuple[DecoderLayer, ...]):
    """Layers in order; going through them reads those ahead and drops those behind."""

    stream: Stream

    def __iter__(self) -> Iterator[DecoderLayer]:
        """Each layer, once what it needs was asked for."""
        for number, layer in enumerate(super().__iter__()):
            self.stream.enter(number)
            yield layer
            self.stream.leave(number)


@dataclass(frozen=True, slots=True)
class Budgeted:
    """Layers, and what of them lies in memory."""

    layers: tuple[DecoderLayer, ...]
    saved: int = 0
    """Bytes of weights that are in a file and not in memory while another layer is computed."""
    selections: tuple[Selection, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """Weights that are no layer's."""

    nbytes: int
    table: tuple[Tensor, ...] = ()
    """Of them those of which a step reads a few rows: they can lie in a file, unread."""

    @property
    def least(self) -> int:
        """Bytes that have to be in memory."""
        return self.nbytes - sum(tensor.nbytes for tensor in self.table)


def load_layers(
    make: Callable[[int], DecoderLayer], count: int, held: Held, budget: int, directory: Path
) -> Budgeted:
    """Build ``count`` layers one by one, beside what is ``held`` already.

    Raises:
        ModelLoadError: The budget holds not even what has to be in memory, a kernel does not say where its
            weights lie, or there is no room for the file.
    """
    first = make(0)
    size = _nbytes(first)
    if held.nbytes + count * size <= budget:
        layers = (first, *map(make, range(1, count)))
        found = held.nbytes + sum(map(_nbytes, layers))
        _check(budget, found)
        said = f"weight_memory of {_mib(budget)} holds all {_mib(found)} of weights"
        return Budgeted(layers, 0, (Selection("offload", "none", said),))
    window = (AHEAD + 1) * size
    if budget < held.least + window:
        raise ModelLoadError(
            f"weight_memory is {budget} bytes, the least for this model is {held.least + window}: "
            f"{held.least} for the output layer and tables, and {AHEAD + 1} layers of {size}"
        )
    room = budget - held.least
    kept = count if count * size <= room else (room - window) // size
    try:
        return _spill(make, first, count, kept, held, directory, budget)
    except OSError as error:
        raise ModelLoadError(f"weights cannot be kept in a file in {directory}: {error}") from error


def _spill(
    make: Callable[[int], DecoderLayer],
    first: DecoderLayer,
    count: int,
    kept: int,
    held: Held,
    directory: Path,
    budget: int,
) -> Budgeted:
    file = SpillFile(directory)
    table = file.put(held.table)
    layers: list[DecoderLayer] = []
    regions: dict[int, tuple[Region, ...]] = {}
    for number in range(count):
        layer = make(number) if number else first
        layers.append(layer)
        # kept ones lie evenly between the others, so that reading has their time, too
        if number * kept // count == (number + 1) * kept // count:
            regions[number] = file.put(_tensors(layer, number))
    file.flush()
    for pages in (table, *regions.values()):
        file.drop(pages)
    largest = max((_nbytes(layers[number]) for number in regions), default=0)
    in_memory = sum(_nbytes(layer) for number, layer in enumerate(layers) if number not in regions)
    _check(budget, held.least + in_memory + (AHEAD + 1) * largest)
    saved = file.nbytes - (AHEAD + 1) * largest
    said = (
        f"weight_memory {_mib(budget)}: {len(regions)} of {count} layers"
        f"{' and the embedding' if table else ''} ({_mib(file.nbytes)}) lie in a file in {directory}; layers "
        f"are read {AHEAD} ahead"
    )
    selections = (Selection("offload", "file", said),)
    if not regions:
        return Budgeted(tuple(layers), max(0, saved), selections)
    streamed = StreamedLayers(layers)
    streamed.stream = Stream(file, regions)
    return Budgeted(streamed, max(0, saved), selections)


def _check(budget: int, needed: int) -> None:
    """The plan took every layer to be as large as the first; mixed checkpoints have others."""
    if needed > budget:
        raise ModelLoadError(
            f"weight_memory is {budget} bytes; this model's layers differ in size, and as they would be kept "
            f"for that they need {needed}: set weight_memory to it or more"
        )


def linears(layer: DecoderLayer) -> tuple[Linear, ...]:
    """Every product of a layer."""
    return (*layer.qkv.parts, layer.attention_output, *layer.gate_up.parts, layer.down)


def _nbytes(layer: DecoderLayer) -> int:
    return sum(linear.nbytes for linear in linears(layer))


def _tensors(layer: DecoderLayer, number: int) -> Iterable[Tensor]:
    for linear in linears(layer):
        if not isinstance(linear, StoredLinear):
            raise ModelLoadError(
                f"weight_memory needs kernels that say where their weights lie; that of layer {number} "
                f"({linear.recipe}) does not: set kernels to cpu or torch"
            )
        yield from linear.tensors


def _mib(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"
