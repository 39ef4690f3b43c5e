"""The command: its own flags say what load, all others are those of ``hundredfold worker``."""

from __future__ import annotations

import sys
from functools import partial

import click

from hundredfold.bench.plan import PRESETS, LoadPlan, PlanError, make_plan
from hundredfold.bench.report import Report
from hundredfold.bench.table import render
from hundredfold.config import service_command
from hundredfold.errors import StartError
from hundredfold_worker.openmp import calm_openmp
from hundredfold_worker.settings import WorkerSettings

_HELP = """Measure the worker's step loop alone: greedy requests straight into the engine, in this process.

All other flags are those of `hundredfold worker`, such as --model, --dtype and --num-threads.
"""


@click.command(
    name="offline",
    help=_HELP,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "show_default": True},
)
@click.option("--preset", type=click.Choice(sorted(PRESETS)), help="A load that people ask for.")
@click.option("--concurrency", type=int, help="Requests in flight; the next starts when one ends. [20]")
@click.option("--num-requests", type=int, help="Requests to measure. [4 x concurrency, at least 8]")
@click.option("--input-len", type=int, help="Prompt tokens of each. [64]")
@click.option("--output-len", type=int, help="Output tokens of each. [128]")
@click.option("--warmup", type=int, help="Requests before the measurement. [as many as run at once]")
@click.option("--seed", type=int, help="Of the prompts. [0]")
@click.option("--raw", is_flag=True, help="Run the same batches again, bare forward and argmax, and compare.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    preset: str | None, raw: bool, as_json: bool, arguments: tuple[str, ...], **given: int | None
) -> None:
    """See ``_HELP``."""
    try:
        plan = make_plan(preset, given)
    except PlanError as error:
        raise click.UsageError(str(error)) from error
    inner = service_command(WorkerSettings, partial(_run, plan, raw, as_json))
    inner.main(args=list(arguments), prog_name="hundredfold bench offline")


def _run(plan: LoadPlan, raw: bool, as_json: bool, settings: WorkerSettings) -> int:
    calm_openmp()
    from hundredfold_worker.bench.offline import measure  # torch: not for --help

    try:
        report = measure(plan, settings, raw=raw)
    except StartError as error:
        raise click.ClickException(str(error)) from error
    _print(report, as_json=as_json)
    return 0 if report.failed == 0 else 1


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(report.to_json() + "\n")
        return
    from rich.console import Console

    Console().print(render(report))
