"""A checkpoint's words on its quantization, wherever they stand: in config.json or beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

KEYS = ("quantization_config", "compression_config")
"""In config.json, and in its part on text; the second is what compressed-tensors wrote at first."""
FILES = ("quantize_config.json", "quant_config.json")
"""Beside config.json. The second is an older one's, in words of its own: asked where nothing else speaks."""
OF_NO_ACCOUNT = {"model_name_or_path", "model_file_base_name"}
"""Keys that say where a file once lay."""

Found = Sequence[tuple[str, Mapping[str, Any]]]
"""Sections with where they stand."""


def beside(root: Path, found: Found, read: Callable[[Path], Mapping[str, Any]]) -> Found:
    """``found``, and what files of their own say."""
    files = [root / name for name in FILES if (root / name).is_file() and not (found and name == FILES[-1])]
    return [*found, *((file.name, read(file)) for file in files)]


def merged(found: Found) -> Mapping[str, Any] | None:
    """What all say together; ``None`` where nobody speaks. Raises ``ValueError`` naming two that differ."""
    if not found:
        return None
    first_place, first = found[0]
    for place, other in found[1:]:
        both = (other.keys() & first.keys()) - OF_NO_ACCOUNT
        differing = sorted(key for key in both if other[key] != first[key])
        if differing:
            raise ValueError(f"{first_place} and {place} differ in '{differing[0]}'")
        first = {**first, **other}  # a file of its own keeps the order of rules, which config.json sorts
    return first
