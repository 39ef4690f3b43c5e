"""Entry points of the installed distributions, each with the distribution that brought it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions

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
    seen: set[str] = set()
    for distribution in distributions():
        try:
            points = [point for point in distribution.entry_points if point.group == group]
            if not points:
                continue  # before its metadata is parsed: there are many distributions
            name, version = distribution.metadata["Name"], distribution.version
        except Exception:  # somebody else's damaged metadata is no reason not to start
            continue
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key not in seen:
            seen.add(key)
            found.extend(Found(point, f"{name} {version}") for point in points)
    return sorted(found, key=lambda f: (f.entry_point.name, f.distribution))


def refuse_duplicates(group: str, found: list[Found]) -> None:
    """Raise ``PluginError`` when two distributions bring one name: which one runs must not be chance."""
    seen: dict[str, Found] = {}
    for item in found:
        first = seen.setdefault(item.entry_point.name, item)
        if first is not item:
            both = f"{first.distribution} and {item.distribution}"
            raise PluginError(
                group,
                item.entry_point.name,
                both,
                "two plugins have this name; uninstall one, or deny one: deny_plugins = "
                f"{item.entry_point.name}@{item.distribution.split()[0]}",
            )
