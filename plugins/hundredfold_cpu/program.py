"""Kept calls: native functions with their arguments in words, and the list that runs them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from hundredfold.plugin import NO_ROWS, NativeCall
from hundredfold_cpu.library import INT, POINTER, Variant, common_function

MOST_WORDS: Final = 16
"""As in native/program.cpp."""

ROWS: Final = object()
"""Stands for the number of rows among the arguments of a call."""


class _Call(ctypes.Structure):
    """``Call`` of native/program.cpp."""

    _fields_ = (
        ("function", POINTER),
        ("words", POINTER),
        ("rows_at", INT),
        ("per_row", POINTER),
        ("num_words", INT),
    )


_KNOW_TEAMS: Final = tuple(
    "dense_ grouped_ channel_ attention_ lookup_ rms_norm_ add_ rotate_ gated_".split()
)
"""Kernels that deal out their work to a team: how their names begin."""


@dataclass(frozen=True, slots=True)
class CpuCall(NativeCall):
    """A call of a kernel of ours."""

    knows_teams: bool = False
    """See native/team.h."""


@dataclass(frozen=True, slots=True)
class ByRow:
    """The address of a buffer's first row among the arguments of a call that computes each row by itself."""

    buffer: Tensor


def kept_call(variant: Variant, name: str, *arguments: object, held: Sequence[object]) -> NativeCall:
    """A call of the kernel ``name``, whose arguments are addresses, buffers by row, whole numbers, floats and
    ``ROWS``.
    """
    words = (INT * len(arguments))(*(_word(argument) for argument in arguments))
    rows_at = next((i for i, argument in enumerate(arguments) if argument is ROWS), NO_ROWS)
    steps = [_row_bytes(argument) for argument in arguments]
    per_row = (INT * len(steps))(*steps) if any(steps) else None
    address = variant.address(f"{name}_words")
    return CpuCall(address, words, rows_at, tuple(held), per_row, name.startswith(_KNOW_TEAMS))


class KeptProgram:
    """See ``hundredfold.plugin.Program``."""

    def __init__(self, calls: Sequence[NativeCall]) -> None:
        self._run = common_function("run", POINTER, INT, INT, INT)
        self._held = tuple(calls)
        self._count = len(calls)
        self._by_team = int(all(isinstance(call, CpuCall) and call.knows_teams for call in calls))
        self._calls = (_Call * len(calls))(
            *(
                _Call(
                    call.function,
                    ctypes.addressof(call.words),
                    call.rows_at,
                    ctypes.addressof(call.per_row) if call.per_row is not None and _fits(call) else None,
                    len(call.words),
                )
                for call in calls
            )
        )
        self._address = ctypes.addressof(self._calls)

    def __call__(self, rows: int) -> None:
        """One native call."""
        self._run(self._address, self._count, rows, self._by_team)


def _fits(call: NativeCall) -> bool:
    """Whether a call, which may be a stranger's, can be made for some of its rows; else for all at once."""
    fits = call.rows_at != NO_ROWS and len(call.words) <= MOST_WORDS
    return fits and call.per_row is not None and len(call.per_row) == len(call.words)


def _row_bytes(argument: object) -> int:
    return argument.buffer.stride(0) * argument.buffer.itemsize if isinstance(argument, ByRow) else 0


def _word(argument: object) -> int:
    if isinstance(argument, ByRow):
        return argument.buffer.data_ptr()
    if argument is ROWS or argument is None:
        return 0
    if isinstance(argument, float):
        return int(struct.unpack("<q", struct.pack("<fi", argument, 0))[0])
    if isinstance(argument, int):
        return argument
    raise TypeError(f"an argument is {type(argument).__name__}, wanted is a number")
