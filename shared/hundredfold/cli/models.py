"""`hundredfold models`: fetch models, and list those at hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hundredfold.models import CATALOG, DEFAULT_MODEL, ModelError, cache_directory, hub_models, pull, resolve

cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where catalog models are kept. [default: models in hundredfold's cache directory]",
)


@click.group(name="models")
def command() -> None:
    """Fetch models, and list those at hand."""


@command.command(name="pull")
@click.argument("name", default=DEFAULT_MODEL)
@click.option("--file", help="Which weight file to take from a hub repository that has several.")
@cache_option
def pull_command(name: str, file: str | None, cache: Path | None) -> None:
    """Fetch NAME unless it is here already.

    NAME is one of `hundredfold models list`, or a Hugging Face repository (owner/name, with @revision if
    wanted).
    Pickled weights are never fetched.
    """
    try:
        files = pull(name, cache=cache, file=file)
    except ModelError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}: {files.path}")


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list; ``path`` is None for what is not here."""

    name: str
    size_bytes: int
    licence: str
    path: str | None
    summary: str


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
@cache_option
def list_command(as_json: bool, cache: Path | None) -> None:
    """List the models known by name and those in the hub's cache."""
    found = list(_listed(cache))
    if as_json:
        click.echo(json.dumps([asdict(model) for model in found]))
        return
    table = Table(
        "name", "size", "licence", "", "at hand", caption=f"Kept in {escape(str(cache_directory(cache)))}"
    )
    for model in found:
        here = "yes" if model.path else f"[dim]hundredfold models pull {escape(model.name)}[/dim]"
        size = f"{model.size_bytes / 1e6:,.0f} MB"
        table.add_row(escape(model.name), size, escape(model.licence), escape(model.summary), here)
    Console().print(table)


def _listed(cache: Path | None) -> Iterator[Listed]:
    directory = cache_directory(cache)
    for entry in CATALOG.values():
        try:
            where: str | None = str(resolve(entry.name, cache=directory).path)
        except ModelError:
            where = None
        yield Listed(entry.name, entry.size, entry.licence, where, entry.summary)
    for name, size, path in hub_models():
        yield Listed(name, size, "", str(path), "in the hub's cache")
