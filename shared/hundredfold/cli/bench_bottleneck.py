"""`hundredfold bench bottleneck`: what binds a running server, why, and which setting to move."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from hundredfold.bench.bottleneck import Finding, Observation, diagnose
from hundredfold.bench.ceilings import kept
from hundredfold.bench.server import ServerError
from hundredfold.bench.sweep_table import bar
from hundredfold.bench.watch import watch
from hundredfold.cli.numbers import Finite

BAR_CELLS = 20


@click.command(name="bottleneck", context_settings={"show_default": True})
@click.option("--address", default="127.0.0.1:50051", help="The door.")
@click.option("--seconds", type=Finite(1, 3600), default=10.0, help="How long to watch; the load is yours.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bottleneck(address: str, seconds: float, as_json: bool) -> None:
    """Watch a server that is under load, and say what binds it.

    The machine's ceilings come from the last `bench ladder` on it: measuring them now would disturb.
    """
    try:
        with _bar(seconds) as progress:
            task = progress.add_task("watching", total=seconds)
            seen = watch(address, seconds, lambda passed: progress.update(task, completed=passed))
    except ServerError as error:
        raise click.ClickException(str(error)) from error
    found = diagnose(seen, kept())
    if as_json:
        told = {"findings": [asdict(finding) for finding in found], "observed": asdict(seen)}
        click.echo(json.dumps(told, indent=2))
    else:
        Console().print(render_findings(found, seen, address))


def render_findings(found: list[Finding], seen: Observation, address: str) -> RenderableType:
    """The findings as a panel, the heaviest first."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for place, finding in enumerate(found):
        style = "bold green" if place == 0 else ""
        head = Text(f"{finding.name:<11}", style=style)
        grid.add_row(head, Text(f"{bar(finding.weight, BAR_CELLS):<{BAR_CELLS}} {finding.weight:.0%}", style))
        grid.add_row("", Text(finding.evidence))
        grid.add_row("", Text(f"→ {finding.advice}", style="dim" if place else ""))
        grid.add_row("", "")
    facts = (
        f"{seen.running:.0f} ran, {seen.waiting:.0f} waited · {seen.output_tokens / seen.seconds:,.0f} "
        f"output tokens/s · {seen.steps / seen.seconds:,.1f} steps/s of {seen.step_ms:,.0f} ms · "
        f"workers busy {seen.busy:.0%} · cache at most {seen.cache_usage:.0%} full"
    )
    where = f"  {address}, {seen.seconds:.0f} s"
    title = Text.assemble(("hundredfold bench bottleneck", "bold"), (where, "dim"))
    body = Group(grid, Text(facts, style="dim"))
    return Panel(body, title=title, title_align="left", box=ROUNDED, padding=(1, 2), expand=False)


def _bar(seconds: float) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(f"of {seconds:g} s"))
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
