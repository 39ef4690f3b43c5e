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
from hundredfold_worker.model.offload.ring import AHEAD, window
from hundredfold_worker.model.offload.spill import Region, SpillFile
from hundredfold_worker.model.offload.stream import Stream

_MIB = 1 << 20


class StreamedLayers(tuple[DecoderLayer, ...]):
    """Layers in order; going through them reads those ahead over those behind."""

    stream: Stream

    def __iter__(self) -> Iterator[DecoderLayer]:
        """Each layer, once it was read."""
        for number, layer in enumerate(super().__iter__()):
            self.stream.enter(number)
            try:
                yield layer
            finally:  # a step that needs no logits ends inside the last layer
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
            weights lie, or there is no room for the file or the buffers.
    """
    try:
        return _Plan(held, budget, directory).fill(make, count)
    except OSError as error:
        raise ModelLoadError(f"weights cannot be kept in a file in {directory}: {error}") from error


class _Plan:
    """What stays in memory and what moves to the file, decided again whenever a layer was built."""

    def __init__(self, held: Held, budget: int, directory: Path) -> None:
        self._held = held
        self._budget = budget
        self._directory = directory
        self._file: SpillFile | None = None
        self._table: tuple[Region, ...] = ()
        self._kept: dict[int, int] = {}
        """Bytes of each layer that stays in memory."""
        self._moved: dict[int, int] = {}
        self._regions: dict[int, tuple[Region, ...]] = {}

    def fill(self, make: Callable[[int], DecoderLayer], count: int) -> Budgeted:
        layers: list[DecoderLayer] = []
        for number in range(count):
            layer = make(number)
            layers.append(layer)
            self._kept[number] = nbytes(layer)
            if number == 0 and self._budget < self._held.least + self._kept[0]:  # before time is spent
                self._check(self._held.least + min(count, AHEAD + 1) * self._kept[0])
            while self._in_memory > self._budget and self._kept:
                self._move(layers)
            self._check(self._in_memory)
        return self._done(tuple(layers))

    @property
    def _in_memory(self) -> int:
        """Bytes at the height of a step."""
        held = self._held.nbytes if self._file is None else self._held.least
        return held + sum(self._kept.values()) + window(self._moved)

    def _move(self, layers: list[DecoderLayer]) -> None:
        """The table first, of which a step reads a few rows; then the layer that spreads them best."""
        if self._file is None:
            self._file = SpillFile(self._directory)
            self._table = self._file.put(self._held.table)
            return
        number = max(self._kept, key=_spread)
        self._regions[number] = self._file.put(_tensors(layers[number], number))
        self._moved[number] = self._kept.pop(number)

    def _check(self, needed: int) -> None:
        if needed > self._budget:
            raise ModelLoadError(
                f"weight_memory is {self._budget} bytes, the least for this model is {needed}: "
                f"{self._held.least} for the output layer and tables, the rest for the {AHEAD + 1} layers "
                "that are in memory at once"
            )

    def _done(self, layers: tuple[DecoderLayer, ...]) -> Budgeted:
        said = f"weight_memory {_mib(self._budget)}: "
        if self._file is None:
            said += f"holds all {_mib(self._in_memory)} of weights"
            return Budgeted(layers, 0, (Selection("offload", "none", said),))
        self._file.flush()
        self._file.drop(self._table)
        said += (
            f"{len(self._regions)} of {len(layers)} layers{' and the embedding' if self._table else ''} "
            f"({_mib(self._file.nbytes)}) lie in a file in {self._directory}; layers are read {AHEAD} ahead"
        )
        selections = (Selection("offload", "file", said),)
        saved = max(0, self._file.nbytes - window(self._moved))
        if not self._regions:
            return Budgeted(layers, saved, selections)
        streamed = StreamedLayers(layers)
        streamed.stream = Stream(self._file, self._regions)
        return Budgeted(streamed, saved, selections)


def nbytes(layer: DecoderLayer) -> int:
    """Bytes of a layer's products."""
    return sum(linear.nbytes for linear in linears(layer))


def linears(layer: DecoderLayer) -> tuple[Linear, ...]:
    """Every product of a layer."""
    return (*layer.qkv.parts, layer.attention_output, *layer.gate_up.parts, layer.down)


def _spread(number: int) -> int:
    """A layer's rank, its number's bits mirrored: whatever share has the smallest ranks lies evenly.

    So those in the file have the time of those between them to be read, and the choice can be made while
    the number of layers that fit is not known.
    """
    return int(f"{number:032b}"[::-1], 2)


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
