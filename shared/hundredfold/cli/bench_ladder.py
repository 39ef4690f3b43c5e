"""`hundredfold bench ladder`: every stage from the naive way to the whole, in one table."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hundredfold.bench.ladder.chart import ChartError, draw
from hundredfold.bench.ladder.climb import Climb, LadderOptions
from hundredfold.bench.ladder.rows import Ladder, Row
from hundredfold.bench.ladder.stages import FULL, QUICK, naive_stages, stages
from hundredfold.bench.ladder.table import markdown, render_ladder
from hundredfold.cli.numbers import Finite
from hundredfold.models import DEFAULT_MODEL, ModelError, resolve

KEYS = [*(stage.key for stage in naive_stages()), *(stage.key for stage in stages(FULL))]
_OUT = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command(name="ladder", context_settings={"show_default": True, "max_content_width": 110})
@click.option("--model", default=DEFAULT_MODEL, help="Catalog name, path or id of a pulled repository.")
@click.option(
    "--only", type=click.Choice(KEYS), multiple=True, help="Measure these stages alone; may be given again."
)
@click.option("--quick", is_flag=True, help="Small loads, to see that it works; its figures mean little.")
@click.option("--no-baseline", is_flag=True, help="Leave transformers out.")
@click.option(
    "--baseline-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An interpreter that has torch and transformers. [default: an environment made for it, once]",
)
@click.option("--minutes", type=Finite(min=0), default=12.0, help="No load begins after so many minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
@click.option("--markdown", "markdown_file", type=_OUT, help="Write the table as Markdown.")
@click.option("--chart", type=_OUT, help="Draw a PNG (or SVG, PDF); needs hundredfold[bench].")
@click.option("--save", type=_OUT, help="Write the JSON object to a file as well.")
@click.option(
    "--from",
    "saved",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure nothing: show what --save wrote.",
)
def ladder(
    model: str,
    only: tuple[str, ...],
    quick: bool,
    no_baseline: bool,
    baseline_python: Path | None,
    minutes: float,
    as_json: bool,
    markdown_file: Path | None,
    chart: Path | None,
    save: Path | None,
    saved: Path | None,
) -> None:
    """Measure, stage after stage on this machine, what each part of the server is worth.

    Each stage starts the services and loads them through the door; one that is not installed, or that a
    worker refuses, is a line with the reason. Wants a quiet machine.
    """
    if saved is not None:
        found = _read(saved)
    else:
        try:
            resolve(model)
        except ModelError as error:
            raise click.ClickException(str(error)) from error
        scale = QUICK if quick else FULL
        options = LadderOptions(model, scale, minutes, not no_baseline, baseline_python, frozenset(only))
        with LadderProgress() as progress:
            found = Climb(options, progress).run()
    _show(found, as_json=as_json, markdown_file=markdown_file, chart=chart, save=save)
    sys.exit(0 if found.best is not None else 1)


class LadderProgress(AbstractContextManager["LadderProgress"]):
    """Two bars on a terminal's standard error: the rows, and the tokens of the one that is measured. A line
    for each row where there is no terminal.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._rows: TaskID = self._progress.add_task("ladder", total=None, note="")
        self._row: TaskID | None = None
        self._done = 0
        self._total = 0

    def __enter__(self) -> Self:
        """Show the bars."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take them away."""
        self._progress.stop()

    def total(self, rows: int) -> None:
        """So many rows there will be."""
        self._total = rows
        self._progress.update(self._rows, total=rows, note=f"0 of {rows}")

    def begin(self, what: str, tokens: int) -> None:
        """A row begins."""
        if self._row is not None:
            self._progress.remove_task(self._row)
        self._row = self._progress.add_task(what, total=tokens or None, note="starting")

    def tokens(self, done: int) -> None:
        """Tokens of the row that have come."""
        if self._row is not None:
            self._progress.update(self._row, completed=done, note=f"{done:,} tokens")

    def row(self, row: Row) -> None:
        """A row is done."""
        self._done += 1
        self._progress.update(self._rows, completed=self._done, note=f"{self._done} of {self._total}")
        figure = f"{row.tokens_per_s:,.1f} tokens/s" if row.tokens_per_s else row.reason
        self._console.print(f"{row.title} · {row.load}: {figure}", style="dim", highlight=False, markup=False)


def _show(
    found: Ladder, *, as_json: bool, markdown_file: Path | None, chart: Path | None, save: Path | None
) -> None:
    if as_json:
        click.echo(found.to_json())
    else:
        console = Console()
        console.print(render_ladder(found, console.width))
    for path, text in ((markdown_file, markdown(found)), (save, found.to_json())):
        if path is not None:
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise click.ClickException(f"{path}: {error.strerror}") from error
    if chart is not None:
        try:
            draw(found, chart)
        except ChartError as error:
            raise click.ClickException(str(error)) from error


def _read(path: Path) -> Ladder:
    try:
        return Ladder.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from error
