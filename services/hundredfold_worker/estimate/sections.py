"""A checkpoint's words on its quantization, wherever they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hundredfold_worker.estimate.config_values import Config

KEYS = ("quantization_config", "compression_config")
FILES = ("quantize_config.json", "quant_config.json")
"""Beside config.json; what they say goes before it, since they keep the order of rules. The second is an
older one's, in words of its own: asked where nothing else speaks."""


def section_of(config: Config, *, beside: bool) -> Mapping[str, Any] | None:
    """The section, ``None`` where nothing is quantized; ``beside``: look for files of their own too."""
    found = next((section for key in KEYS if (section := config.section(key))), None)
    for name in FILES if beside else ():
        file = config.path.with_name(name)
        if file.is_file() and not (found is not None and name == FILES[-1]):
            found = {**(found or {}), **Config.read(file).values}
    return found
