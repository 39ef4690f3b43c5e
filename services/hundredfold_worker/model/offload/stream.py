"""Reads layers ahead of the computation and drops them behind it, on a thread of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from queue import SimpleQueue

from hundredfold_worker.model.offload.spill import Region, SpillFile

AHEAD = 2
"""Layers that are read before they are needed."""

_Order = tuple[str, int]


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
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._asked: set[int] = set()
        self._thread = threading.Thread(
            target=_work, args=(file, self._regions, self._orders), name="weights", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._orders.put, None)

    @property
    def nbytes(self) -> int:
        """Bytes that each step reads."""
        return sum(region.nbytes for pages in self._regions.values() for region in pages)

    def enter(self, layer: int) -> None:
        """A layer is about to be computed: have those after it read, the first ones of the next step too."""
        behind = [number for number in self._numbers if number >= layer]
        for number in [*behind, *self._numbers][: AHEAD + 1]:
            if number not in self._asked:
                self._asked.add(number)
                self._orders.put(("fetch", number))

    def leave(self, layer: int) -> None:
        """A layer was computed."""
        if layer in self._regions and len(self._numbers) > AHEAD + 1:
            self._asked.discard(layer)
            self._orders.put(("drop", layer))


def _work(
    file: SpillFile, regions: Mapping[int, tuple[Region, ...]], orders: SimpleQueue[_Order | None]
) -> None:
    while (order := orders.get()) is not None:
        what, layer = order
        if what == "fetch":
            file.fetch(regions[layer])
        else:
            file.drop(regions[layer])
