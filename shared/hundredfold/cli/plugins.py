"""`hundredfold plugins`: every entry point found, what became of it, and why."""

from __future__ import annotations

import dataclasses
import json
import sys

import click
from rich.box import SIMPLE_HEAD
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
    table = Table("plugin", "from", "state", "", box=SIMPLE_HEAD, show_edge=False, header_style="dim")
    for column in table.columns[:3]:
        column.no_wrap = True
    group = ""
    for record in records:
        if group and record.group != group:
            table.add_section()
        group = record.group
        colour = "yellow" if record.unavailable else _COLOURS[record.state]
        # Text, not markup: names and errors are somebody else's. The first column is what deny lists take.
        name = Text.assemble((f"{group.removeprefix('hundredfold.')}:", "dim"), (record.name, "bold"))
        state = Text(record.state.value, style=colour)
        table.add_row(name, Text(record.distribution), state, Text(_why(record)))
    return table


def _why(record: PluginRecord) -> str:
    if record.unavailable:
        return f"not on this machine: {record.unavailable}"
    if not record.error:
        return record.description
    known = f"plugin '{record.name}' of group {record.group}, brought by {record.distribution}: "
    return record.error.removeprefix(known).splitlines()[0]
