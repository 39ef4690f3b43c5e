"""Sizes and rates as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}iB": 1 << 10 * power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {prefix: 10 ** (3 * power) for power, prefix in enumerate("KMGT", 1)}
_LOWER = {name.lower(): value for name, value in _UNITS.items()}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*?)(?:/s)?\s*")


def parse(text: str) -> int:
    """Bytes of ``40GiB``, ``500 MB`` or ``3.35TB/s``. Raises ``ValueError``."""
    found = _NUMBER.fullmatch(text)
    unit = None if found is None else _LOWER.get(found.group(2).lower())
    if found is None or unit is None:
        raise ValueError(f"{text!r} is no size; write 40GiB, 500MB or 800GB/s")
    return int(float(found.group(1)) * unit)


def to_bytes(value: object) -> object:
    """A size as text in bytes; anything else as it is, for pydantic to judge."""
    return parse(value) if isinstance(value, str) else value


def show(count: float) -> str:
    """Bytes in the unit that suits."""
    sign, size = ("-" if count < 0 else ""), abs(count)
    if size < 1 << 10:
        return f"{sign}{size:.0f} B"
    for power, unit in enumerate(("KiB", "MiB", "GiB"), 1):
        if size < 1 << 10 * (power + 1):
            number = size / (1 << 10 * power)
            return f"{sign}{number:.3g} {unit}" if number < 999.5 else f"{sign}{number:.0f} {unit}"
    return f"{sign}{size / (1 << 40):,.3g} TiB"


def number(count: float) -> str:
    """Three figures, with thousands apart."""
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"
