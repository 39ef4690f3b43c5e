"""Buffers that the layers in a file share: several layers lie at the same pages of memory, one at a time.

A layer's addresses are mapped onto its buffer once, so that nothing is mapped, faulted or dropped in a step:
a layer is read into its buffer, over one that was computed before, and is then where it always was.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from itertools import accumulate

from hundredfold_worker.model.offload.pages import PAGE, map_over
from hundredfold_worker.model.offload.reader import Reader
from hundredfold_worker.model.offload.spill import Region, SpillFile

AHEAD = 2
"""Layers that are read before they are needed."""


def buffers(numbers: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """The layers that share a buffer, in order: each ``AHEAD`` + 1 apart from the next.

    After the last comes the first again. Would the two share a buffer, the one could not be read before the
    other was computed; the last one then shares that of the second, ``AHEAD`` apart from both.
    """
    ordered = sorted(numbers)
    count = min(len(ordered), AHEAD + 1)
    shared: list[list[int]] = [[] for _ in range(count)]
    for index, number in enumerate(ordered):
        alone = count > 1 and index == len(ordered) - 1 and index % count == 0
        shared[(index + alone) % count].append(number)
    return tuple(map(tuple, shared))


def window(sizes: Mapping[int, int]) -> int:
    """Bytes in memory of layers in a file, whose bytes are given: each buffer holds its largest one."""
    return sum(max(sizes[number] for number in shared) for shared in buffers(sizes))


class Ring:
    """The buffers of one model, in memory from the beginning; its layers cannot be written to.

    What tools show as a process's resident memory counts a page for each layer that shares it; what the
    system accounts for it does not.

    Args:
        file: Holds the layers.
        layers: Of each, by its number, what lies one behind the other in the file.

    Raises:
        OSError: There is no memory, or the system refuses; the layers lie where they were before.
    """

    def __init__(self, file: SpillFile, layers: Mapping[int, tuple[Region, ...]]) -> None:
        self.shared = buffers(layers)
        self._file = file
        self._layers = dict(layers)
        sizes = [max(map(self._nbytes, shared)) for shared in self.shared]
        starts = accumulate(sizes[:-1], initial=0)
        self._starts = {
            number: start for start, shared in zip(starts, self.shared, strict=True) for number in shared
        }
        self._reader = Reader(file.fileno(), max(file.nbytes, PAGE))
        self._pages = self._made(max(sum(sizes), PAGE))

    def _nbytes(self, number: int) -> int:
        return sum(region.nbytes for region in self._layers[number])

    def _made(self, nbytes: int) -> mmap.mmap:
        memory = os.memfd_create("weights")
        try:
            os.posix_fallocate(memory, 0, nbytes)  # no room is an error here, and not when it is touched
            pages = mmap.mmap(memory, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            for number, start in self._starts.items():
                for region in self._layers[number]:
                    at = start + region.offset - self._layers[number][0].offset
                    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                    map_over(region.address, region.nbytes, memory, at, mmap.PROT_READ, flags)
        except OSError:
            self.dissolve()
            raise
        finally:
            os.close(memory)  # what was mapped stays
        return pages

    def read(self, number: int) -> None:
        """Have a layer lie in its buffer. Raises ``OSError`` when it cannot be read."""
        if nbytes := self._nbytes(number):
            start = self._starts[number]
            with memoryview(self._pages) as pages, pages[start : start + nbytes] as into:
                self._reader.read(self._layers[number][0].offset, into)

    def dissolve(self) -> None:
        """Have each layer lie at its addresses by itself, read from the file where it is touched.

        Whoever is given the memory when a layer was freed has it for himself.
        """
        for regions in self._layers.values():
            self._file.map(regions)
