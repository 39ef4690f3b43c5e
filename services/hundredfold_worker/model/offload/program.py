"""Captured calls, cut where layers come from the file: these lie at the same addresses in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby

from hundredfold.plugin import NativeCall, Program
from hundredfold_worker.model.offload.stream import Stream

Part = tuple[int | None, Sequence[NativeCall]]
"""Calls, and the layer whose weights they read; ``None`` for what is no layer's."""


class StreamedProgram:
    """See ``hundredfold.plugin.Program``. Who runs it tells the stream when the step is over.

    Args:
        stream: Reads the layers that lie in the file.
        parts: In order.
        program: Makes one list of calls.
    """

    def __init__(
        self, stream: Stream, parts: Iterable[Part], program: Callable[[Sequence[NativeCall]], Program]
    ) -> None:
        self._stream = stream
        read = frozenset(stream.numbers)
        runs = groupby(
            (part for part in parts if part[1]), key=lambda part: part[0] if part[0] in read else None
        )
        self._programs = tuple(
            (layer, program(tuple(chain.from_iterable(calls for _, calls in run)))) for layer, run in runs
        )

    def __call__(self, rows: int) -> None:
        """Each list once its layer was read; then the buffer is free for the one after it."""
        for layer, program in self._programs:
            self._stream.go_on(layer)
            program(rows)
