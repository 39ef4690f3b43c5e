"""NAME=VALUE texts of a setting, for a plugin that is told them."""

from __future__ import annotations

from collections.abc import Iterable

from hundredfold.errors import StartError


def named_values(setting: str, texts: Iterable[str]) -> dict[str, str]:
    """The values by name; a later one wins. Raises ``StartError`` where a text is of another form."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise StartError(f"{setting} has {text!r}, wanted is NAME=VALUE")
        values[name] = value
    return values
