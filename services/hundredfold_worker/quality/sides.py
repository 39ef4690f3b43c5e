"""What stands on the command line for a way of serving: MODEL:key=value,key=value as worker settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hundredfold.config import load
from hundredfold_worker.settings import WorkerSettings


class SideError(ValueError):
    """A side that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way of serving."""

    text: str
    """As it was given, a left-out model filled in."""
    settings: WorkerSettings


def read_sides(first: str, second: str) -> tuple[Side, Side]:
    """Both sides; a second without a model has the first's.

    Raises:
        SideError: a side is not of the form.
        ConfigError: a setting is unknown or does not fit.
    """
    model, changes = _parts(first)
    other, other_changes = _parts(second)
    if not model:
        raise SideError(f"'{first}' names no model; the first side has to")
    return _side(model, changes), _side(other or model, other_changes)


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """``MODEL:key=value,…``; the last colon before the first ``=`` parts them, so a path may have colons."""
    head, equals, rest = text.partition("=")
    if not equals:
        return text.removesuffix(":"), {}
    model, colon, key = head.rpartition(":")
    if not colon:
        raise SideError(f"'{text}' has no model; write MODEL:{text}, or :{text} for the first side's")
    changes: dict[str, str] = {}
    for item in f"{key}={rest}".split(","):
        name, has_value, value = item.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not has_value:
            raise SideError(f"'{text}': '{item}' is no key=value")
        # a setting that is a list may be named several times
        changes[name] = f"{changes[name]},{value}" if name in changes else value
    return model, changes


def _side(model: str, changes: Mapping[str, str]) -> Side:
    if "model" in changes:
        raise SideError("the model stands before the colon, not among the settings")
    shown = ",".join(f"{key}={value}" for key, value in changes.items())
    settings = load(WorkerSettings, file=None, flags={"model": model, **changes})
    return Side(f"{model}:{shown}" if shown else model, settings)
