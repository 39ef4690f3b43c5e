"""`hundredfold bench`: measure a running server, the worker alone, or compare two reports."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.status import Status

from hundredfold.bench.arrivals import Arrival
from hundredfold.bench.compare import render_comparison
from hundredfold.bench.mock import MockSpeed, serve_mock
from hundredfold.bench.plan import PRESETS, LoadPlan, PlanError, make_plan
from hundredfold.bench.processes import ClientProcessError
from hundredfold.bench.report import Report
from hundredfold.bench.serve import WarmupError, measure
from hundredfold.bench.server import ServerError
from hundredfold.bench.sweep import SWEEPS, SWEPT, choose_axes, make_plans, run_sweep, to_json
from hundredfold.bench.sweep_table import render_sweep
from hundredfold.bench.table import render
from hundredfold.cli.bench_bottleneck import bottleneck
from hundredfold.cli.bench_check import check
from hundredfold.cli.bench_ladder import ladder
from hundredfold.cli.bench_tune import tune
from hundredfold.rpc import run_loop

OFFLINE = "bench-offline"
"""Name of the entry point in group hundredfold.commands that holds `bench offline`."""


@click.group(name="bench")
def command() -> None:
    """Measure speed: through the door, of the worker alone, or compare two reports.

    What each figure means is written down in hundredfold/bench/README.md.
    """


command.add_command(ladder)
command.add_command(check)
command.add_command(tune)
command.add_command(bottleneck)


@command.command(context_settings={"show_default": True, "max_content_width": 110})
@click.option("--address", default="127.0.0.1:50051", help="The door.")
@click.option(
    "--preset",
    type=click.Choice((*PRESETS, *SWEEPS)),
    help="A usual baseline, or a usual sweep; flags beside it win.",
)
@click.option(
    "--sweep",
    "sweep_texts",
    multiple=True,
    metavar="FLAG=N,N,...",
    help=f"Measure at each value of {', '.join(SWEPT)}; given twice, at each combination.",
)
@click.option("--concurrency", type=int, help="Closed loop: requests in flight. [default: 20 without --rate]")
@click.option("--rate", type=float, help="Open loop: requests per second, sent at their time come what may.")
@click.option(
    "--arrival",
    type=click.Choice([arrival.value for arrival in Arrival]),
    help="Open loop: poisson, or burst (all at once; with --rate one second's worth at a time). "
    "[default: poisson with --rate]",
)
@click.option("--beam-width", type=int, help="Beams of each request. [default: no beam search]")
@click.option("--num-requests", type=int, help="Requests measured. [default: 4 x concurrency, else 80]")
@click.option("--input-len", type=int, help="Prompt length in tokens, exact. [default: 64]")
@click.option("--output-len", type=int, help="Answer length in tokens, exact. [default: 128]")
@click.option("--shared-prefix", type=int, help="Leading prompt tokens that are the same in all requests.")
@click.option("--phrase", type=int, help="Prompt tokens after which a prompt repeats itself: much to copy.")
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text prompts, one a line, in place of random tokens.",
)
@click.option("--temperature", type=float, help="[default: 0, greedy]")
@click.option("--seed", type=int, help="Of prompts, arrivals and sampling. [default: 0]")
@click.option(
    "--warmup",
    type=int,
    help="Requests before the measurement, of at most 32 tokens. [default: the concurrency; open loop: 8]",
)
@click.option(
    "--timeout", "timeout_s", type=float, help="Deadline of each request in seconds. [default: 600]"
)
@click.option(
    "--client-processes",
    type=int,
    help="Processes that send. [default: as many as the warm-up shows are needed]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def serve(preset: str | None, sweep_texts: tuple[str, ...], as_json: bool, **given: object) -> None:
    """Measure a running server through its door, once or along a sweep.

    Exit code 0 when at least one request succeeded, 1 when none did or the server could not be reached, 2 for
    flags that make no sense.
    """
    try:
        if axes := choose_axes(preset, sweep_texts, given):
            sys.exit(_sweep(make_plans(preset, axes, given), as_json=as_json))
        plan = make_plan(preset if preset in PRESETS else None, given)
        with _Progress(plan.num_requests) as progress:
            report = measure(plan, progress.show)
    except PlanError as error:
        raise click.UsageError(str(error)) from error
    except (ServerError, WarmupError, ClientProcessError, ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    _print(report, as_json=as_json)
    sys.exit(0 if report.failed < report.requests else 1)


@command.command(
    name="offline",
    short_help="Measure the worker's step loop alone, without gRPC.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def offline(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Hand over to the worker's own benchmark, imported only now: it needs torch."""
    found = entry_points(group="hundredfold.commands", name=OFFLINE)
    if not found:
        raise click.ClickException(f"no installed package offers {OFFLINE}: install hundredfold[worker]")
    try:
        loaded = next(iter(found)).load()
    except ImportError as error:
        raise click.ClickException(
            f"bench offline needs the worker: install hundredfold[worker] ({error})"
        ) from error
    loaded.main(args=list(arguments), prog_name=context.command_path)


@command.command()
@click.argument("first", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("second", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare(first: Path, second: Path) -> None:
    """Print the ratios of two reports that --json wrote, SECOND by FIRST."""
    Console().print(render_comparison(_read(first), _read(second), (first.stem, second.stem)))


@command.command(context_settings={"show_default": True})
@click.option("--listen", default="127.0.0.1:50051", help="HOST:PORT; port 0 draws one.")
@click.option("--first-token-ms", default=100.0, help="Time to first token.")
@click.option("--event-interval-ms", default=20.0, help="Time between events.")
@click.option("--tokens-per-event", default=1, help="Token ids in each event.")
@click.option("--fail-every", default=0, help="Refuse every k-th request; 0 refuses none.")
def mock(
    listen: str, first_token_ms: float, event_interval_ms: float, tokens_per_event: int, fail_every: int
) -> None:
    """Serve a mock door of known speed, to see what `bench serve` makes of it."""
    speed = MockSpeed(
        first_token_s=first_token_ms / 1e3,
        event_interval_s=event_interval_ms / 1e3,
        tokens_per_event=tokens_per_event,
        fail_every=fail_every,
    )
    run_loop(serve_mock(listen, speed))


def _sweep(plans: Sequence[LoadPlan], *, as_json: bool) -> int:
    with _Progress(max(plan.num_requests for plan in plans)) as progress:
        points = run_sweep(plans, progress.show)
    if as_json:
        click.echo(to_json(points))
    else:
        console = Console()
        console.print(render_sweep(points, console.width))
    return 0 if any(point.record.tokens_per_s for point in points) else 1


class _Progress(AbstractContextManager["_Progress"]):
    """The phase and the number of requests sent, on a terminal's standard error; nowhere else."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._total = total
        self._status: Status | None = console.status("connecting") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, phase: str, sent: int) -> None:
        """Show where the run is."""
        if self._status is not None:
            self._status.update(f"{phase} · {sent} of {self._total} sent" if sent else phase)


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        click.echo(report.to_json())
    else:
        Console().print(render(report))


def _read(path: Path) -> Report:
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{path}: {error}") from error
