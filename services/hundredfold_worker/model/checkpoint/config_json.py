"""Typed, bounded access to a checkpoint's config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hundredfold.models.safetensors_header import parse_json_object
from hundredfold_worker.model.errors import ModelLoadError

MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConfigJson:
    """A JSON object of a checkpoint. A key that is absent or null counts as missing."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""
    """Where in the file the object stands, for messages."""

    @classmethod
    def read(cls, path: Path) -> ConfigJson:
        """Read a file. Raises ``CheckpointError`` or ``ModelLoadError`` naming it."""
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ModelLoadError(f"{path} has {size} bytes; the limit is {MAX_BYTES}")
        return cls(path, parse_json_object(path, path.read_bytes()))

    def has(self, key: str) -> bool:
        """Whether the key has a value."""
        return self.values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there without a value, which for some keys is an answer of its own."""
        return key in self.values and self.values[key] is None

    def integer(self, key: str, *, default: int | None = None, least: int = 1, most: int) -> int:
        """A whole number from ``least`` to ``most``; without a default the key has to be there."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, *, default: float | None = None, above: float = 0.0) -> float:
        """A finite number above ``above``."""
        value = self._get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.wrong(key, "a number")
        if not _is_finite(value) or value <= above:
            raise self.wrong(key, f"a finite number above {above:g}")
        return float(value)

    def boolean(self, key: str, *, default: bool) -> bool:
        """A truth value."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def string(self, key: str, *, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """Exactly ``count`` finite numbers above 0."""
        values = self._get(key, None)
        if not isinstance(values, list) or len(values) != count:
            raise self.wrong(key, f"a list of {count} numbers")
        for value in values:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not _is_finite(value) or value <= 0:
                raise self.wrong(key, f"{count} finite numbers above 0")
        return tuple(map(float, values))

    def section(self, key: str) -> ConfigJson | None:
        """The object under ``key``, or ``None`` when there is none."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return ConfigJson(self.path, value, f"{self.prefix}{key}.")

    def wrong(self, key: str, wanted: str) -> ModelLoadError:
        """The error for a key of the wrong type or range."""
        shown = repr(self.values.get(key))[:80]
        return ModelLoadError(f"{self.path}: '{self.prefix}{key}' is {shown}, expected is {wanted}")

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self.path}: '{self.prefix}{key}' is missing")
        return value


def _is_finite(value: int | float) -> bool:
    """Whether it is a number that a float holds; JSON has integers of any length."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
