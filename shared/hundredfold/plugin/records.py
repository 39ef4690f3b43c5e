"""What is known of a plugin that was found: where it comes from and what became of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@enum.unique
class PluginState(enum.Enum):
    """What became of an entry point."""

    LOADED = "loaded"
    """Imported, built, and it meets its contract."""
    DENIED = "denied"
    """The lists leave it out; its code was not touched."""
    FAILED = "failed"
    """It could not be loaded, and nobody asked for it by name."""
    AVAILABLE = "available"
    """Found, not needed so far; its code was not touched."""


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One entry point."""

    group: str
    name: str
    distribution: str
    """Name and version of the package that brought it."""
    state: PluginState
    api_version: str = ""
    """Plugin API that it was written for, once loaded."""
    description: str = ""
    """First line of its docstring, once loaded."""
    error: str = ""
    """Why it failed or was denied."""
    unavailable: str = ""
    """Why a loaded plugin cannot run on this machine, in its own words; empty when it does not say so."""


class PluginError(RuntimeError):
    """A plugin that was asked for cannot be used, or plugins contradict each other: the start ends."""

    def __init__(self, group: str, name: str, distribution: str, reason: str, traceback: str = "") -> None:
        message = f"plugin '{name}' of group {group}, brought by {distribution}: {reason}"
        super().__init__(f"{message}\n{traceback}" if traceback else message)
        self.message = message
        """Without the traceback."""
        self.group = group
        self.name = name
        self.distribution = distribution
        self.reason = reason
        self.traceback = traceback
        """Of the exception that its code raised; empty when none did."""
