"""`hundredfold bench check`: has anything become slower, told by ratios that were stored before."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hundredfold.bench.check import CheckError, Verdict, judge, kind_of_machine, ratios, read, write
from hundredfold.bench.check_run import PAIRS, measure_round
from hundredfold.models import DEFAULT_MODEL

_STYLES = {"ok": "green", "worse": "bold red", "better": "bold cyan", "new": "yellow"}


@click.command(name="check", context_settings={"show_default": True})
@click.option("--model", default=DEFAULT_MODEL, help="Catalog name, path or id of a pulled repository.")
@click.option(
    "--ratios",
    "path",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The stored ratios, by kind of machine.",
)
@click.option("--rounds", type=click.IntRange(1, 20), default=2, help="A ratio is the median of so many.")
@click.option("--update", is_flag=True, help="Store what is measured now.")
def check(model: str, path: Path, rounds: int, update: bool) -> None:
    """Measure a few ratios and compare them with the stored ones of this kind of machine.

    Exit code 1 when one is worse than its bound allows. Wants a quiet machine.
    """
    _ask_before_measuring(path, update)
    kind = kind_of_machine()
    console = Console(stderr=True)
    try:
        stored = read(path, kind)
        speeds = []
        for number in range(1, rounds + 1):

            def say(what: str, number: int = number) -> None:
                console.print(f"round {number} of {rounds}: {what}", style="dim", highlight=False)

            speeds.append(measure_round(model, say))
        verdicts = judge(ratios(speeds, PAIRS), stored)
        if update:
            write(path, kind, verdicts)
    except CheckError as error:
        raise click.ClickException(str(error)) from error
    Console().print(render_verdicts(verdicts, kind))
    if update:
        click.echo(f"stored in {path}")
    elif any(verdict.status in ("better", "new") for verdict in verdicts):
        click.echo(f"to store these: hundredfold bench check --ratios {path} --rounds {rounds} --update")
    sys.exit(any(verdict.status == "worse" for verdict in verdicts) and not update)


def _ask_before_measuring(path: Path, update: bool) -> None:
    """What would be known at the start is not told after minutes. Raises ClickException."""
    if not update and not path.exists():
        raise click.ClickException(f"{path} is not there; --update stores what is measured now")
    if update and not path.parent.is_dir():
        raise click.ClickException(f"{path.parent} is no directory, {path} cannot be stored")


def render_verdicts(verdicts: Sequence[Verdict], kind: str) -> Table:
    """A line for each ratio."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"ratio ({kind})")
    for name in ("now", "stored", "from", "to", ""):
        table.add_column(name, justify="right")
    for verdict in verdicts:
        stored = verdict.stored
        known = [f"{stored.value:.2f}", f"{stored.least:.2f}", f"{stored.most:.2f}"] if stored else ["–"] * 3
        status = Text(verdict.status, style=_STYLES[verdict.status])
        table.add_row(verdict.name, Text(f"{verdict.measured:.2f}", style="bold"), *known, status)
    return table
