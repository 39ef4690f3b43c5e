"""Entry points of the installed distributions, each with the distribution that brought it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions

from hundredfold.plugin.records import PluginError


@dataclass(frozen=True, slots=True)
class Found:
    """An entry point and its origin."""

    entry_point: EntryPoint
    distribution: str
    """Name and version."""


def find(group: str) -> list[Found]:
    """Entry points of ``group`` by name; nothing is imported. Of one distribution found twice, the first."""
    found: list[Found] = []
    for distribution in _distinct():
        try:
            entry_points = distribution.entry_points
            origin = f"{distribution.metadata['Name']} {distribution.version}"
        except Exception:
            continue
        found.extend(Found(point, origin) for point in entry_points if point.group == group)
    return sorted(found, key=lambda f: (f.entry_point.name, f.distribution))


def refuse_duplicates(group: str, found: list[Found]) -> None:
    """Raise ``PluginError`` when two distributions bring one name: which one runs must not be chance."""
    seen: dict[str, Found] = {}
    for item in found:
        first = seen.setdefault(item.entry_point.name, item)
        if first is not item:
            both = f"{first.distribution} and {item.distribution}"
            raise PluginError(
                group, item.entry_point.name, both, "two plugins have this name; uninstall or deny one"
            )


def _distinct() -> Iterator[Distribution]:
    seen: set[str] = set()
    for distribution in distributions():
        name = distribution.metadata["Name"] if distribution.metadata is not None else None
        key = re.sub(r"[-_.]+", "-", str(name)).lower()
        if name and key not in seen:
            seen.add(key)
            yield distribution
