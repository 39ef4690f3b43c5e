"""The compiled library: finds it, knows which instruction sets run here, and hands out its functions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - first, so that the library joins the OpenMP runtime and thread pool that torch brings

import hundredfold_cpu

INSTRUCTION_SETS = ("avx512amx", "avx512vnni", "avx512", "avx2", "portable")
"""Best first."""

MATRIX_UNITS = ("avx512amx",)
"""Those that multiply whole tiles of integers."""

_ADDS_TO = {"avx512amx": "avx512vnni"}
"""Instruction sets with some kernels only, and whose others they take."""

OVERRIDE = "HUNDREDFOLD_CPU_ISA"
"""Environment variable that names the instruction set to use instead of the best."""

POINTER = ctypes.c_void_p
INT = ctypes.c_int64
FLOAT = ctypes.c_float


Kernel = Callable[..., None]
"""A function of the library; its arguments are numbers and addresses."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The kernels of one instruction set."""

    isa: str

    def function(self, name: str, *arguments: Any, release: bool = True) -> Kernel:
        """The kernel ``hf_<isa>_<name>``, which returns nothing.

        ``release`` lets other Python threads run meanwhile; short kernels are better off without, since
        getting the interpreter back from a busy thread costs up to its switch interval.
        """
        return _function(_library(release), self._symbol(name), arguments)

    def address(self, name: str) -> int:
        """Where the kernel ``hf_<isa>_<name>`` lies."""
        return ctypes.cast(_library(True)[self._symbol(name)], POINTER).value or 0

    def _symbol(self, name: str) -> str:
        own = f"hf_{self.isa}_{name}"
        has_own = self.isa not in _ADDS_TO or hasattr(_library(True), own)
        return own if has_own else f"hf_{_ADDS_TO[self.isa]}_{name}"


def common_function(name: str, *arguments: Any) -> Kernel:
    """The function ``hf_<name>``, of which there is one for every instruction set."""
    return _function(_library(True), f"hf_{name}", arguments)


def variants() -> tuple[Variant, ...]:
    """Every variant that this processor runs, best first. Raises ``OSError`` when the library is missing."""
    supports = _library(True).hf_supports
    return tuple(Variant(isa) for isa in INSTRUCTION_SETS if supports(isa.encode()))


def best() -> Variant:
    """The variant that ``HUNDREDFOLD_CPU_ISA`` names, or the best.

    Raises ``ValueError`` when the one that is named does not run here.
    """
    runs = {variant.isa: variant for variant in variants()}
    wanted = os.environ.get(OVERRIDE)
    if not wanted:
        return next(iter(runs.values()))
    if wanted not in runs:
        raise ValueError(f"{OVERRIDE} is '{wanted}'; this processor runs {', '.join(runs)}")
    return runs[wanted]


def path() -> Path:
    """Where the library lies: beside this file in a wheel, elsewhere on the package's path when editable."""
    for folder in hundredfold_cpu.__path__:
        found = Path(folder) / "native.so"
        if found.exists():
            return found
    raise OSError("the compiled library is missing: install hundredfold again")


def _function(library: ctypes.CDLL, name: str, arguments: tuple[Any, ...]) -> Kernel:
    function = library[name]  # a new one each time, so that arguments can differ from another's
    function.argtypes = arguments
    function.restype = None
    return function


@cache
def _library(release: bool) -> ctypes.CDLL:
    return ctypes.CDLL(str(path())) if release else ctypes.PyDLL(str(path()))
