"""Kept calls: native functions with their arguments in words, and the list that runs them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Final

from hundredfold.plugin import NO_ROWS, NativeCall
from hundredfold_cpu.library import INT, POINTER, Variant, common_function

ROWS: Final = object()
"""Stands for the number of rows among the arguments of a call."""


class _Call(ctypes.Structure):
    """``Call`` of native/program.cpp."""

    _fields_ = (("function", POINTER), ("words", POINTER), ("rows_at", INT))


def kept_call(variant: Variant, name: str, *arguments: object, held: Sequence[object]) -> NativeCall:
    """A call of the kernel ``name``, whose arguments are addresses, whole numbers, floats and ``ROWS``."""
    words = (INT * len(arguments))(*(_word(argument) for argument in arguments))
    rows_at = next((i for i, argument in enumerate(arguments) if argument is ROWS), NO_ROWS)
    return NativeCall(variant.address(f"{name}_words"), words, rows_at, tuple(held))


class KeptProgram:
    """See ``hundredfold.plugin.Program``."""

    def __init__(self, calls: Sequence[NativeCall]) -> None:
        self._run = common_function("run", POINTER, INT, INT)
        self._held = tuple(calls)
        self._count = len(calls)
        self._calls = (_Call * len(calls))(
            *(_Call(call.function, ctypes.addressof(call.words), call.rows_at) for call in calls)
        )
        self._address = ctypes.addressof(self._calls)

    def __call__(self, rows: int) -> None:
        """One native call."""
        self._run(self._address, self._count, rows)


def _word(argument: object) -> int:
    if argument is ROWS or argument is None:
        return 0
    if isinstance(argument, float):
        return int(struct.unpack("<q", struct.pack("<fi", argument, 0))[0])
    if isinstance(argument, int):
        return argument
    raise TypeError(f"an argument is {type(argument).__name__}, wanted is a number")
