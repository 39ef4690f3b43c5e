"""The plugins of one group: found through entry points, imported when needed, checked before use."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from typing import Any

from hundredfold.plugin import GROUPS
from hundredfold.plugin.conformance import faults
from hundredfold.plugin.discovery import Found, find, refuse_duplicates
from hundredfold.plugin.records import PluginError, PluginRecord, PluginState

__all__ = ["PluginError", "PluginRecord", "PluginState", "Registry", "all_registries"]


class Registry:
    """The plugins of one group.

    ``allow`` names the only ones to use (``None``: all), ``deny`` those not to; entries are names, or
    ``GROUP:NAME`` such as ``attention:torch`` where a name occurs in several groups. ``@DISTRIBUTION`` behind
    either means the one that this distribution brings. Deny wins.
    """

    def __init__(
        self, group: str, *, allow: Collection[str] | None = None, deny: Collection[str] = ()
    ) -> None:
        if group not in GROUPS:
            raise ValueError(f"plugin group '{group}' is unknown; groups are {', '.join(GROUPS)}")
        self.group = group
        self._denied: dict[str, PluginRecord] = {}
        self._found: dict[str, Found] = {}
        self._plugins: dict[str, Any] = {}
        self._failed: dict[str, PluginError] = {}
        open_to_use = []
        for item in find(group):
            why = self._why_denied(item, allow, deny)
            if why is None:
                open_to_use.append(item)
            else:
                self._denied[f"{item.entry_point.name} {item.distribution}"] = PluginRecord(
                    group, item.entry_point.name, item.distribution, PluginState.DENIED, error=why
                )
        refuse_duplicates(group, open_to_use)
        self._found = {item.entry_point.name: item for item in open_to_use}

    def names(self) -> tuple[str, ...]:
        """Names that may be asked for, sorted; their code was not touched for it."""
        return tuple(self._found)

    def get(self, name: str) -> Any:
        """The plugin asked for, built once. Raises ``PluginError`` when it is absent or unusable."""
        if name in self._plugins:
            return self._plugins[name]
        if name in self._failed:
            raise self._failed[name]
        if name not in self._found:
            raise self._not_there(name)
        try:
            plugin = self._load(self._found[name])
        except PluginError as error:
            self._failed[name] = error
            raise
        self._plugins[name] = plugin
        return plugin

    def candidates(self) -> list[tuple[str, Any]]:
        """Every plugin that can be used, for a choice among them: highest ``priority`` first, then by name.

        Those that fail are left out and recorded with their error.
        """
        for name in self._found:
            try:
                self.get(name)
            except PluginError:
                continue  # recorded; nobody asked for this one by name
        return sorted(self._plugins.items(), key=lambda item: (-getattr(item[1], "priority", 0), item[0]))

    def records(self) -> list[PluginRecord]:
        """What became of each entry point, by name."""
        known = [self._record(name, item) for name, item in self._found.items()]
        return sorted([*known, *self._denied.values()], key=lambda r: (r.name, r.distribution))

    def fault(self, name: str, reason: str, trace: str = "") -> PluginError:
        """What a loaded plugin did wrong, to be raised by who called it."""
        return self._error(self._found[name], reason, trace)

    def _record(self, name: str, item: Found) -> PluginRecord:
        if name in self._failed:
            error = str(self._failed[name])
            return PluginRecord(self.group, name, item.distribution, PluginState.FAILED, error=error)
        if name not in self._plugins:
            return PluginRecord(self.group, name, item.distribution, PluginState.AVAILABLE)
        plugin = self._plugins[name]
        return PluginRecord(
            self.group,
            name,
            item.distribution,
            PluginState.LOADED,
            api_version=str(plugin.api_version),
            description=_first_line(plugin),
            unavailable=_unavailable(plugin),
        )

    def _load(self, item: Found) -> Any:
        point = item.entry_point
        try:
            loaded = point.load()
            plugin = loaded() if isinstance(loaded, type) else loaded
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}"
            raise self._error(item, reason, traceback.format_exc()) from error
        missing = faults(self.group, point.name, plugin)
        if missing:
            raise self._error(item, f"{point.value} does not meet the contract: it " + "; it ".join(missing))
        return plugin

    def _error(self, item: Found, reason: str, trace: str = "") -> PluginError:
        return PluginError(self.group, item.entry_point.name, item.distribution, reason, trace)

    def _not_there(self, name: str) -> PluginError:
        denied = [r for r in self._denied.values() if r.name == name]
        if denied:
            return PluginError(self.group, name, denied[0].distribution, denied[0].error)
        names = ", ".join(self.names()) or "none"
        return PluginError(self.group, name, "no distribution", f"it is not installed; installed: {names}")

    def _why_denied(self, item: Found, allow: Collection[str] | None, deny: Collection[str]) -> str | None:
        name, origin = item.entry_point.name, item.distribution.split()[0]
        spellings = {name, f"{self.group}:{name}", f"{self.group.removeprefix('hundredfold.')}:{name}"}
        spellings |= {f"{spelling}@{origin}" for spelling in spellings}
        if spellings & set(deny):
            return "it is on the deny list"
        if allow is not None and not spellings & set(allow):
            return "it is not on the allow list"
        return None


def all_registries(
    *, allow: Collection[str] | None = None, deny: Collection[str] = ()
) -> dict[str, Registry]:
    """A registry for every group, by group. Raises ``PluginError`` when two plugins have one name."""
    return {group: Registry(group, allow=allow, deny=deny) for group in GROUPS}


def _first_line(plugin: object) -> str:
    lines = (type(plugin).__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def _unavailable(plugin: object) -> str:
    """What a plugin's ``unavailable()``, if it has one, says of this machine."""
    ask = getattr(plugin, "unavailable", None)
    if ask is None:
        return ""
    try:
        return "; ".join(map(str, ask()))
    except Exception as error:  # it is asked for a list, not for the start
        return f"unavailable() raised {type(error).__name__}: {error}"
