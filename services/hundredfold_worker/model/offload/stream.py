"""Reads layers ahead of the computation, on a thread of its own, into buffers that those behind have left."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hundredfold_worker.model.offload.ring import Ring
from hundredfold_worker.model.offload.spill import Region, SpillFile


@dataclass(frozen=True, slots=True)
class _Read:
    layer: int
    done: Future[None]


@dataclass(slots=True)
class _Buffer:
    shared: tuple[int, ...]
    """Layers that come here, in order."""
    read: _Read | None = None
    """Of the one that lies here, or will."""

    def after(self, layer: int) -> int:
        """Who comes after one of them; after the last the first again."""
        return next((number for number in self.shared if number > layer), self.shared[0])


class Stream:
    """The layers of one model that lie in a file; one step at a time goes through them.

    When it ends, each layer lies at its addresses as if there had never been a stream.

    Args:
        file: Holds them.
        regions: Of each such layer, by its number.

    Raises:
        OSError: There is no memory for the buffers, or the system refuses.
    """

    def __init__(self, file: SpillFile, regions: Mapping[int, tuple[Region, ...]]) -> None:
        self.file = file
        self._sizes = {number: sum(region.nbytes for region in pages) for number, pages in regions.items()}
        self._ring = Ring(file, regions)
        self._buffers = [_Buffer(shared) for shared in self._ring.shared]
        self._buffer_of = {number: buffer for buffer in self._buffers for number in buffer.shared}
        self._inside: int | None = None
        self._thread = ThreadPoolExecutor(1, "weights")
        self._end = weakref.finalize(self, _end, self._thread, self._ring)
        self._begin(0)

    @property
    def nbytes(self) -> int:
        """Bytes that each step reads: of layers that have no buffer for themselves."""
        return sum(
            self._sizes[number]
            for buffer in self._buffers
            if len(buffer.shared) > 1
            for number in buffer.shared
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The layers that lie in the file."""
        return tuple(sorted(self._sizes))

    def enter(self, layer: int) -> None:
        """A layer is about to be computed: waits until it was read.

        Raises:
            OSError: It cannot be read.
            RuntimeError: Another one is being computed.
        """
        if self._inside is not None:
            raise RuntimeError(f"layer {self._inside} is being computed: one step at a time streams weights")
        buffer = self._buffer_of.get(layer)
        if buffer is not None and self._end.alive:
            if buffer.read is None or buffer.read.layer != layer:  # the step before ended early, or failed
                self._begin(layer)
            try:
                self._fill(buffer, layer).done.result()
            except OSError:
                buffer.read = None  # may be tried again
                raise
        self._inside = layer

    def leave(self, layer: int) -> None:
        """A layer was computed: its buffer is free for the one after it."""
        if layer != self._inside:
            return  # a step that failed may be left late
        self._inside = None
        buffer = self._buffer_of.get(layer)
        if buffer is not None and self._end.alive:
            self._fill(buffer, buffer.after(layer))

    def go_on(self, layer: int | None) -> None:
        """A step that goes through captured calls has come to a layer, if it is not there already; with
        ``None`` to what has to be in no buffer. Raises as ``enter``.
        """
        if layer == self._inside:
            return
        if self._inside is not None:
            self.leave(self._inside)
        if layer is not None:
            self.enter(layer)

    def _begin(self, layer: int) -> None:
        """Fill every buffer for a computation that goes on at a layer, in the order of need."""
        upcoming = {buffer.after(layer - 1): buffer for buffer in self._buffers}
        for number in sorted(upcoming, key=lambda number: (number < layer, number)):
            self._fill(upcoming[number], number)

    def _fill(self, buffer: _Buffer, layer: int) -> _Read:
        """The read that has a layer lie in a buffer, begun where it was not yet."""
        if buffer.read is None or buffer.read.layer != layer:
            buffer.read = _Read(layer, self._thread.submit(self._ring.read, layer))
        return buffer.read

    def close(self) -> None:
        """Wait until all that was asked for is done, and end."""
        self._thread.shutdown()
        self._end()


def _end(thread: ThreadPoolExecutor, ring: Ring) -> None:
    """Does not wait: a read that goes on fills a buffer where no layer lies any more."""
    thread.shutdown(wait=False, cancel_futures=True)
    ring.dissolve()
