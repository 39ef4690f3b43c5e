"""`hundredfold bench tune`: the settings for a latency target on this machine."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hundredfold.bench.ladder.climb import MEASURE_ERRORS
from hundredfold.bench.plan import LoadPlan
from hundredfold.bench.serve import measure
from hundredfold.bench.stack import StackError, StackOptions, running_stack
from hundredfold.bench.table import milliseconds
from hundredfold.bench.tune import (
    BATCHED_TOKENS,
    MOST_SEATS,
    Point,
    Target,
    choose,
    frontier,
    search_seats,
)
from hundredfold.cli.numbers import Finite
from hundredfold.models import DEFAULT_MODEL

_UNITS = {"ms": 1.0, "s": 1000.0, "": 1.0}


def _duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Milliseconds of 80ms, 1.5s or a number of milliseconds."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|)", value)
    if found is None or not float(found[1]):
        raise click.BadParameter(f"'{value}' is no duration such as 80ms or 1.5s")
    return float(found[1]) * _UNITS[found[2]]


@click.command(name="tune", context_settings={"show_default": True, "max_content_width": 110})
@click.option("--model", default=DEFAULT_MODEL, help="Catalog name, path or id of a pulled repository.")
@click.option(
    "--tpot-p99",
    metavar="DURATION",
    callback=_duration,
    help="Most that a token after the first may take, such as 80ms.",
)
@click.option(
    "--ttft-p99",
    metavar="DURATION",
    callback=_duration,
    help="Most that a first token may take when all come at once.",
)
@click.option("--max-seqs", type=click.IntRange(1, 4096), default=MOST_SEATS, help="Most sequences to try.")
@click.option(
    "--batched-tokens",
    default=",".join(map(str, BATCHED_TOKENS)),
    help="Values of max_num_batched_tokens to try, each with a start of the services.",
)
@click.option("--input-len", type=click.IntRange(1), default=64, help="Prompt tokens of each request.")
@click.option("--output-len", type=click.IntRange(2), default=64, help="Output tokens of each.")
@click.option("--set", "assignments", multiple=True, metavar="SERVICE.SETTING=VALUE", help="Held settings.")
@click.option("--minutes", type=Finite(min=0), default=10.0, help="No run begins after so many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tune(
    model: str,
    tpot_p99: float | None,
    ttft_p99: float | None,
    max_seqs: int,
    batched_tokens: str,
    input_len: int,
    output_len: int,
    assignments: tuple[str, ...],
    minutes: float,
    as_json: bool,
) -> None:
    """Search max_num_seqs and max_num_batched_tokens: most tokens a second that keep the latency target.

    All requests of a run begin together, so TTFT is that of the worst moment. Wants a quiet machine.
    """
    if tpot_p99 is None and ttft_p99 is None:
        raise click.UsageError("give a target: --tpot-p99, --ttft-p99 or both")
    target = Target(tpot_p99, ttft_p99)
    held = dict(_assignment(text) for text in assignments)
    deadline = time.monotonic() + 60 * minutes
    console = Console(stderr=True)
    points: list[Point] = []
    for tokens in _numbers(batched_tokens):
        if time.monotonic() > deadline:
            console.print(f"max_num_batched_tokens {tokens} is left out: the time is over", style="yellow")
            continue
        settings = {
            **held,
            "worker.max_num_batched_tokens": str(tokens),
            "worker.max_num_seqs": str(min(max_seqs, tokens)),
        }
        try:
            with running_stack(StackOptions(model, settings)) as stack:

                def run(seats: int, address: str = stack.address, tokens: int = tokens) -> Point:
                    point = _measured(address, seats, tokens, input_len, output_len)
                    console.print(_line(point, target), style="dim", highlight=False)
                    return point

                points += search_seats(run, target, min(max_seqs, tokens))
        except MEASURE_ERRORS as error:
            if isinstance(error, StackError) and not points:
                raise click.ClickException(str(error)) from error
            console.print(f"max_num_batched_tokens {tokens}: {error}", style="red", markup=False)
    best = choose(points, target)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "target": asdict(target),
                    "points": [asdict(point) for point in points],
                    "frontier": [asdict(point) for point in frontier(points)],
                    "best": None if best is None else asdict(best),
                },
                indent=2,
            )
        )
    else:
        Console().print(render_tuning(points, target, best))
    sys.exit(0 if best is not None else 1)


def render_tuning(points: Sequence[Point], target: Target, best: Point | None) -> RenderableType:
    """Every point, the frontier marked, and the setting to use."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("max_num_seqs", "max_num_batched_tokens", "tokens/s", "TPOT p99", "TTFT p99"):
        table.add_column(name, justify="right")
    table.add_column("")
    edge = frontier(points)
    for point in sorted(points, key=lambda point: (point.batched_tokens, point.seats)):
        missed = target.misses(point)
        style = "bold green" if point == best else "dim" if missed else ""
        marks = [*(["frontier"] if point in edge else []), *missed]
        table.add_row(
            str(point.seats),
            str(point.batched_tokens),
            f"{point.tokens_per_s:,.0f}",
            f"{milliseconds(point.tpot_p99_ms)} ms",
            f"{milliseconds(point.ttft_p99_ms)} ms",
            "← use this" if point == best else ", ".join(marks),
            style=style,
        )
    if best is None:
        told = Text("no setting that was tried keeps the target; one request alone is too slow", style="red")
    else:
        told = Text(
            f"hundredfold serve --max-num-seqs {best.seats} --max-num-batched-tokens {best.batched_tokens}",
            style="bold",
        )
    return Group(table, Text(), told)


def _measured(address: str, seats: int, tokens: int, input_len: int, output_len: int) -> Point:
    plan = LoadPlan(
        address,
        num_requests=max(seats, 2),
        input_len=input_len,
        output_len=output_len,
        concurrency=seats,
        warmup=min(seats, 8),
        client_processes=1,
    )
    report = measure(plan, lambda _phase, _sent: None)
    return Point(seats, tokens, report.output_tokens_per_s, report.tpot_ms.p99, report.ttft_ms.p99)


def _line(point: Point, target: Target) -> str:
    missed = target.misses(point)
    return (
        f"{point.seats} at once, at most {point.batched_tokens} tokens a step: "
        f"{point.tokens_per_s:,.0f} tokens/s, "
        f"{'misses ' + ', '.join(missed) if missed else 'keeps the target'}"
    )


def _numbers(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise click.UsageError(f"--batched-tokens {text}: wanted are whole numbers with commas")
    return found


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise click.UsageError(f"--set {text}: wanted is SERVICE.SETTING=VALUE")
    return name, value
