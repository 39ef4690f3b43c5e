"""The command: two sides, a text, and an exit code that a build can act on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hundredfold.config import ConfigError
from hundredfold.errors import StartError
from hundredfold_worker.openmp import calm_openmp
from hundredfold_worker.quality.sides import SideError, read_sides

if TYPE_CHECKING:
    from hundredfold_worker.quality.compare import Comparison, Plan, Progress

_HELP = """Compare two ways of serving: what B loses against A.

A and B are MODEL, or MODEL:key=value,key=value with settings of `hundredfold worker`; a setting that is a
list may be named several times. Without a model, B has A's.

\b
    hundredfold quality smollm2-135m:dtype=fp32,activations=float :quantization=int8
    hundredfold quality A B --fail-above 1% --chart layers.png

Both models score the same text, each token by those before it, in chunks through the paged cache, so that
what a cache encoding loses counts. Without --text the text is eight pages of Python's own help, `objects`,
`naming`, `exceptions`, `import`, `function`, `with`, `attribute-access` and `customization` of
`pydoc_data.topics`, in this order, up to --tokens. Both models are in memory at once.

With --decode the windows' first tokens are prompts and their last ones are drawn, --batch windows side by
side, as a server does: that is what attention=sparse is measured by. The text is then every page, over which
the windows are spread, and --tokens is not looked at; one side after the other is in memory, and A's logits,
--decode times --batch times the vocabulary times 4 bytes, until B has run.

\b
    hundredfold quality smollm2-135m :attention=sparse --window 8192 --chunk 512 --decode 64 --batch 16

Exit code 0; 1 when the perplexity rises by more than --fail-above, or a side cannot run.
"""


class _Share(click.ParamType):  # type: ignore[type-arg] # generic in new versions of click alone
    """``1%`` or ``0.01``."""

    name = "share"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        """A share, 0 or more."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"'{text}' is no share; write 1% or 0.01", param, ctx)
        if not 0 <= share < float("inf"):
            self.fail(f"'{text}' is no share of 0 or more", param, ctx)
        return share


@click.command(name="quality", help=_HELP, context_settings={"show_default": True, "max_content_width": 110})
@click.argument("a")
@click.argument("b")
@click.option("--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A text in UTF-8.")
@click.option("--tokens", type=click.IntRange(2), default=4096, help="Leading tokens of the text to take.")
@click.option(
    "--window", type=click.IntRange(2), default=1024, help="Tokens of a sequence; the next begins anew."
)
@click.option("--chunk", type=click.IntRange(1), default=128, help="Tokens computed at a time.")
@click.option("--decode", type=click.IntRange(0, 1024), default=0,
              help="Compute a window's last N tokens one at a time; score and time these.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 256), default=16, help="With --decode: windows side by side.")
@click.option("--layers", is_flag=True, help="Also each layer by itself: the worst, and which to keep wider.")
@click.option("--chart", type=click.Path(dir_okay=False, writable=True, path_type=Path),
              help="Draw each layer's loss as a heat map, PNG or SVG; needs hundredfold[bench].")  # fmt: skip
@click.option("--fail-above", "--max-perplexity-increase", "limit", type=_Share(), metavar="SHARE",
              help="Exit code 1 when perplexity rises by more: 1% or 0.01.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    a: str,
    b: str,
    text: Path | None,
    tokens: int,
    window: int,
    chunk: int,
    decode: int,
    batch: int,
    layers: bool,
    chart: Path | None,
    limit: float | None,
    as_json: bool,
) -> None:
    """See ``_HELP``."""
    try:
        sides = read_sides(a, b)
    except (SideError, ConfigError) as error:
        raise click.UsageError(str(error)) from error
    if decode and (layers or chart is not None):
        raise click.UsageError(
            "--decode scores tokens one at a time; --layers and --chart take whole windows"
        )
    calm_openmp()
    from hundredfold_worker.quality.compare import Plan  # torch: not for --help
    from hundredfold_worker.quality.report import passes, render, to_json

    comparison = _compare(
        Plan(sides, text, tokens, window, chunk, layers or chart is not None, decode, batch)
    )
    if chart is not None:
        _draw(comparison, chart)
    if as_json:
        sys.stdout.write(to_json(comparison, limit) + "\n")
    else:
        from rich.console import Console

        Console().print(render(comparison, limit))
    sys.exit(1 if passes(comparison, limit) is False else 0)


def _compare(plan: Plan) -> Comparison:
    from hundredfold_worker.quality.compare import compare

    with _progress() as progress:
        try:
            return compare(plan, progress)
        except StartError as error:
            raise click.ClickException(str(error)) from error


def _draw(comparison: Comparison, chart: Path) -> None:
    from hundredfold_worker.quality.chart import draw

    try:
        draw(comparison, chart)
    except StartError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal's standard error; nowhere else."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("load", total=None)
        yield lambda phase, done, total: bar.update(task, description=phase, completed=done, total=total)
