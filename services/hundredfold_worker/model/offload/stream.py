"""Reads layers ahead of the computation and drops them behind it, on a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from hundredfold_worker.model.offload.spill import Region, SpillFile

AHEAD = 2
"""Layers that are read before they are needed."""


class Stream:
    """The layers of one model that lie in a file.

    Args:
        file: Holds them.
        regions: Of each such layer, by its number.
    """

    def __init__(self, file: SpillFile, regions: Mapping[int, tuple[Region, ...]]) -> None:
        self.file = file
        self._regions = dict(regions)
        self._numbers = sorted(regions)
        self._reads: dict[int, Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, "weights")  # ends with this object

    @property
    def nbytes(self) -> int:
        """Bytes that each step reads."""
        if len(self._numbers) <= AHEAD + 1:
            return 0
        return sum(region.nbytes for pages in self._regions.values() for region in pages)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The layers that lie in the file."""
        return tuple(self._numbers)

    def enter(self, layer: int) -> None:
        """A layer is about to be computed: have those after it read, the first ones of the next step too.

        Waits until this one was: many small reads, one for each page that a product comes to, are slower.
        Raises ``OSError`` when it cannot be read; the next step tries again.
        """
        behind = [number for number in self._numbers if number >= layer]
        for number in [*behind, *self._numbers][: AHEAD + 1]:
            if number not in self._reads:
                self._reads[number] = self._thread.submit(self.file.fetch, self._regions[number])
        if layer in self._reads:
            try:
                self._reads[layer].result()
            except OSError:
                del self._reads[layer]
                raise

    def leave(self, layer: int) -> None:
        """A layer was computed."""
        if layer in self._regions and len(self._numbers) > AHEAD + 1:
            self._reads.pop(layer, None)  # a step that failed may be left late, when another has been here
            self._thread.submit(self.file.drop, self._regions[layer])

    def close(self) -> None:
        """Wait until all that was asked for is done; nothing can be asked for after it."""
        self._thread.shutdown()
