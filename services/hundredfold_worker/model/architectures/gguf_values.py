"""Bounded access to the keys of one architecture in GGUF metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hundredfold.models import GgufMetadata
from hundredfold_worker.model.description import MAX_LAYERS
from hundredfold_worker.model.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class GgufSection:
    """The keys that begin with an architecture's name."""

    metadata: GgufMetadata
    architecture: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.metadata.path

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return self._full(key) in self.metadata.values

    def integer(self, key: str, *, default: int | None = None, least: int = 1, most: int) -> int:
        """A whole number from ``least`` to ``most``; without a default the key has to be there."""
        value = self.metadata.integer(self._full(key))
        return self._in_range(key, default if value is None else value, least, most)

    def same_in_every_layer(self, key: str, *, default: int | None = None, most: int) -> int:
        """A whole number, given once or as a list that repeats it."""
        value = self.metadata.values.get(self._full(key))
        if not isinstance(value, np.ndarray):
            return self.integer(key, default=default, most=most)
        different = set(value.tolist())
        if len(different) != 1 or not np.issubdtype(value.dtype, np.integer):
            raise self.wrong(key, "one whole number for all layers")
        return self._in_range(key, int(different.pop()), 1, most)

    def pattern(self, key: str, *, default: int, count: int) -> list[bool]:
        """Which of ``count`` layers differ: as a list says, or all but every n-th."""
        value = self.metadata.values.get(self._full(key))
        if isinstance(value, np.ndarray):
            if value.dtype != np.bool_ or len(value) != count:
                raise self.wrong(key, f"a whole number or {count} truth values")
            return [bool(entry) for entry in value]
        every = self.integer(key, default=default, most=MAX_LAYERS)
        return [bool((index + 1) % every) for index in range(count)]

    def number(self, key: str, *, default: float, above: float = 0.0) -> float:
        """A finite number above ``above``."""
        value = self.metadata.number(self._full(key))
        value = default if value is None else value
        if not math.isfinite(value) or value <= above:
            raise self.wrong(key, f"a finite number above {above:g}")
        return value

    def string(self, key: str, *, default: str) -> str:
        """A string."""
        value = self.metadata.string(self._full(key))
        return default if value is None else value

    def wrong(self, key: str, wanted: str) -> ModelLoadError:
        """The error for a key of the wrong value."""
        shown = repr(self.metadata.values.get(self._full(key)))[:80]
        return ModelLoadError(f"{self.path}: '{self._full(key)}' is {shown}, expected is {wanted}")

    def _in_range(self, key: str, value: int | None, least: int, most: int) -> int:
        if value is None:
            raise ModelLoadError(f"{self.path}: '{self._full(key)}' is missing")
        if not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def _full(self, key: str) -> str:
        return f"{self.architecture}.{key}"
