"""`hundredfold plugins`: every entry point found, what became of it, and why."""

from __future__ import annotations

import dataclasses
import json
import sys

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hundredfold.plugin.registry import PluginError, PluginRecord, PluginState, all_registries

_COLOURS = {
    PluginState.LOADED: "green",
    PluginState.AVAILABLE: "default",
    PluginState.DENIED: "yellow",
    PluginState.FAILED: "red",
}


@click.command(name="plugins")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, tracebacks included.")
def command(as_json: bool) -> None:
    """List the installed plugins. Each is loaded to find out whether it can be."""
    try:
        registries = all_registries()
    except PluginError as error:
        click.echo(f"hundredfold plugins: {error}", err=True)
        sys.exit(1)
    records: list[PluginRecord] = []
    for registry in registries.values():
        registry.candidates()
        records.extend(registry.records())
    if as_json:
        click.echo(json.dumps([_plain(record) for record in records], indent=2))
    else:
        Console().print(_table(records))


def _plain(record: PluginRecord) -> dict[str, str]:
    return {**dataclasses.asdict(record), "state": record.state.value}


def _table(records: list[PluginRecord]) -> Table:
    table = Table("group", "name", "distribution", "api", "state", "why")
    for record in records:
        why = record.error.splitlines()[0] if record.error else record.description
        if record.unavailable:
            why = f"not on this machine: {record.unavailable}"
        # Text, not markup: names and errors are somebody else's.
        row = [
            record.group.removeprefix("hundredfold."),
            record.name,
            record.distribution,
            record.api_version,
        ]
        colour = "yellow" if record.unavailable else _COLOURS[record.state]
        state = Text(record.state.value, style=colour)
        table.add_row(*map(Text, row), state, Text(why))
    return table
