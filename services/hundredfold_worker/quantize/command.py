"""The command: what is asked for, a progress bar, and what came out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hundredfold.errors import StartError
from hundredfold_worker.openmp import calm_openmp
from hundredfold_worker.quantize.errors import QuantizeError
from hundredfold_worker.quantize.recipe import Method, Options, Recipe, Rule, make_recipe, parse_rule

if TYPE_CHECKING:
    from hundredfold_worker.quantize.run import Outcome, Plan, Progress

_HELP = """Make a quantized checkpoint of MODEL, a layer at a time.

\b
    hundredfold quantize smollm2-135m --method gptq --bits 4 --group-size 64 -o out
    hundredfold quantize MODEL --method smoothquant --calibration mine.txt -o out
    hundredfold quantize MODEL --rule '*.self_attn.*=gptq:4:64' --rule '*.mlp.*=awq:3:64' -o out

A decoder layer is in memory at a time, and what the calibration text is at that layer: 4 bytes by hidden
size by tokens, up to three times as much inside of the layer. A run that was killed goes on where it stopped
when it is started again with the same arguments, and gives the same bytes.

Methods: gptq and awq (2, 3, 4, 8 bits) round weights in groups of columns; smoothquant and int8 round weights
by row and, when served, inputs by token; fp8 does so in e4m3. int8 and fp8 look at no text. What comes out is
read by transformers and others; awq of other widths than 4 bits, gptq that differs by layer, and an output
layer in gptq or awq by GPTQModel; mixtures of methods only here.

Rules: the first that matches a layer's name (as transformers call it) decides, then --method; without either
a layer stays as it is. PATTERN=none keeps it. Embedding and output layer are quantized only by a rule that
is their very name: lm_head=gptq:8:64 gives a tied model an output layer of its own, model.embed_tokens=int8
alone keeps one table for both, which only hundredfold reads.

Without --calibration the text is Python's own help, `pydoc_data.topics`, without the pages that
`hundredfold quality` scores. Text like what will be served is better.
"""


@click.command(name="quantize", help=_HELP, context_settings={"show_default": True, "max_content_width": 112})
@click.argument("model")
@click.option("--method", type=click.Choice([method.value for method in Method]), help="For every layer.")
@click.option("--bits", type=int, help="Of gptq and awq.  [default: 4]")
@click.option(
    "--group-size", type=int, help="Columns that share a scale with gptq and awq; -1: all.  [default: 64]"
)
@click.option(
    "--sym/--asym",
    "symmetric",
    default=None,
    help="Without or with zero points.  [default: sym for gptq, asym for awq]",
)
@click.option("--act-order", is_flag=True, help="gptq: the columns that matter most first.")
@click.option("--rule", "rules", multiple=True, metavar="PATTERN=METHOD:BITS:GROUP", help="For some layers.")
@click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text in UTF-8, in the words of what will be served.",
)
@click.option("--samples", type=click.IntRange(1), default=64, help="Sequences of the text, spread over it.")
@click.option("--window", type=click.IntRange(8), default=512, help="Tokens of each.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="A directory that is not there yet, or one that a killed run left.",
)
@click.option("--num-threads", type=click.IntRange(1), help="Threads of torch; its own choice when unset.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: str,
    method: str | None,
    bits: int | None,
    group_size: int | None,
    symmetric: bool | None,
    act_order: bool,
    rules: tuple[str, ...],
    calibration: Path | None,
    samples: int,
    window: int,
    output: Path,
    num_threads: int | None,
    as_json: bool,
) -> None:
    """See ``_HELP``."""
    options = Options(bits, group_size, symmetric, act_order)
    try:
        otherwise, parsed = _recipes(method, rules, options)
    except QuantizeError as error:
        raise click.UsageError(str(error)) from error
    calm_openmp()
    from hundredfold_worker.quantize.report import render, to_json  # torch: not for --help
    from hundredfold_worker.quantize.run import Plan

    outcome = _run(Plan(model, output, otherwise, parsed, calibration, samples, window, num_threads))
    if as_json:
        sys.stdout.write(to_json(outcome) + "\n")
    else:
        from rich.console import Console

        Console().print(render(outcome))


def _recipes(
    method: str | None, rules: tuple[str, ...], options: Options
) -> tuple[Recipe | None, tuple[Rule, ...]]:
    otherwise = None if method is None else make_recipe(method, options)
    parsed = tuple(parse_rule(rule, options) for rule in rules)
    if method is None and not parsed:
        raise QuantizeError("nothing would be quantized: name a --method, or a --rule")
    return otherwise, parsed


def _run(plan: Plan) -> Outcome:
    from hundredfold_worker.quantize.run import quantize

    with _progress() as progress:
        try:
            return quantize(plan, progress)
        except StartError as error:
            raise click.ClickException(str(error)) from error


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal's standard error; nowhere else."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("open", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total or None
        )
