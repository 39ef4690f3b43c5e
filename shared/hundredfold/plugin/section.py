"""A checkpoint's words on its quantization, read with a check of every value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

SHOWN = 80
"""Characters of a wrong value that a message repeats."""


@dataclass(frozen=True, slots=True)
class Section:
    """A JSON object. A key that is absent or null counts as missing; every error names the key."""

    values: Mapping[str, Any]
    place: str = ""
    """Where in the section the object stands, for messages; empty, or ends in a dot."""

    def has(self, key: str) -> bool:
        """Whether the key has a value."""
        return self.values.get(key) is not None

    def integer(self, key: str, *, default: int | None = None) -> int:
        """A whole number. Raises ``ValueError`` when it is none, or missing and without a default."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, "a whole number")
        return value

    def one_of(self, key: str, allowed: Collection[int], *, default: int | None = None) -> int:
        """A whole number out of ``allowed``."""
        value = self.integer(key, default=default)
        if value not in allowed:
            raise self.wrong(key, f"one of {', '.join(map(str, allowed))}")
        return value

    def group_size(self, key: str = "group_size", *, default: int | None = None) -> int:
        """Columns that share a scale, at least 1; -1 for whole rows."""
        value = self.integer(key, default=default)
        if value != -1 and value < 1:
            raise self.wrong(key, "a number of columns, or -1 for whole rows")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, *, default: str = "") -> str:
        """A text."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def table(self, key: str) -> Mapping[str, Any]:
        """An object, empty when it is missing."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return value

    def wrong(self, key: str, wanted: str) -> ValueError:
        """The error for a value that cannot be used."""
        shown = repr(self.values.get(key))[:SHOWN]
        return ValueError(f"'{self.place}{key}' is {shown}, expected is {wanted}")

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"'{self.place}{key}' is missing")
        return value
