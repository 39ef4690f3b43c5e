"""Bounded values from the config.json of any decoder, under any of the names that a value has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hundredfold.errors import StartError
from hundredfold.models.safetensors_header import parse_json_object
from hundredfold_worker.quantization_section import KEYS, Found

MAX_BYTES = 16 * 1024 * 1024
LARGEST = 1 << 30
"""Above any size of a real model."""


@dataclass(frozen=True, slots=True)
class Config:
    """The part of a config.json that describes the text decoder."""

    path: Path
    values: Mapping[str, Any]
    sections: Found = ()
    """Every section on quantization."""

    @classmethod
    def read(cls, path: Path) -> Config:
        """Read a file; of a multimodal model the text part. Raises ``StartError`` or ``CheckpointError``."""
        try:
            size = path.stat().st_size
            if size > MAX_BYTES:
                raise StartError(f"{path} has {size} bytes; the limit is {MAX_BYTES}")
            whole: dict[str, Any] = parse_json_object(path, path.read_bytes())
        except OSError as error:
            raise StartError(f"{path} cannot be read: {error.strerror}") from error
        name = next((key for key in _INNER if isinstance(whole.get(key), dict)), None)
        inner = {} if name is None else whole[name]
        sections = [
            (f"{place}{key}", values[key])
            for values, place in ((whole, ""), (inner, f"{name}."))
            for key in KEYS
            if isinstance(values.get(key), dict) and values[key]
        ]
        return cls(path, {**whole, **inner}, sections)

    def section(self, key: str) -> Mapping[str, Any]:
        """The object under a key; empty when there is none."""
        value = self.values.get(key)
        return value if isinstance(value, dict) else {}

    def size(self, *keys: str, default: int | None = None) -> int:
        """A whole number from 1 on, under the first of the names that has one. Raises ``StartError``."""
        found = self.optional(*keys)
        found = default if found is None else found
        if found is None:
            raise StartError(f"{self.path}: '{keys[0]}' is missing; without it nothing can be estimated")
        if found < 1:
            raise StartError(f"{self.path}: '{keys[0]}' is {found}, expected is a whole number from 1")
        return found

    def optional(self, *keys: str) -> int | None:
        """A whole number from 0 on, or ``None``. Raises ``StartError`` for what is no such number."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
                wanted = f"expected is a whole number up to {LARGEST}"
                raise StartError(f"{self.path}: '{key}' is {repr(value)[:80]}, {wanted}")
            return value
        return None

    def says(self, key: str, default: bool = False) -> bool:
        """A truth value; anything else counts as ``default``."""
        value = self.values.get(key)
        return value if isinstance(value, bool) else default

    def text(self, key: str) -> str:
        """A string; empty when there is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def texts(self, key: str) -> tuple[str, ...]:
        """The strings of a list."""
        value = self.values.get(key)
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


_INNER = ("text_config", "llm_config", "language_config")
