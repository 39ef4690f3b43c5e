"""`hundredfold serve`: the services of one machine under one command."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from hundredfold.client import AsyncClient, RequestFailed
from hundredfold.config import ConfigError, Problem
from hundredfold.models import DEFAULT_MODEL, ModelError, resolve
from hundredfold.supervisor.child import Sink
from hundredfold.supervisor.greeting import Address, ready_panel, stream_sample
from hundredfold.supervisor.house import (
    LISTEN,
    SERVICES,
    SHARED_SETTINGS,
    House,
    HouseOptions,
    as_assigned,
    parse_extra,
)
from hundredfold.supervisor.restarts import RestartPolicy
from hundredfold.supervisor.supervisor import EXIT_BAD_CONFIG, Outcome, Supervisor

_HTTP_PACKAGES = ("starlette", "uvicorn")
_ADDRESS_FLAGS = dict(
    zip(SERVICES, ("--http", "--listen", "--scheduler-listen", "--worker-listen"), strict=True)
)
_COLOURS = {
    "gateway": "blue",
    "tokenizer": "cyan",
    "scheduler": "magenta",
    "worker": "yellow",
    "serve": "green",
}


@click.command(name="serve", context_settings={"max_content_width": 110})
@click.option("--model", help=f"Catalog name, path or id of a pulled repository. [default: {DEFAULT_MODEL}]")
@click.option("--listen", metavar="ADDRESS,...", help=f"The public door. [default: {LISTEN['tokenizer']}]")
@click.option("--http", metavar="ADDRESS,...", help=f"OpenAI's API. [default: {LISTEN['gateway']}]")
@click.option("--no-http", is_flag=True, help="Leave OpenAI's API out.")
@click.option("--scheduler-listen", metavar="ADDRESS,...", help=f"[default: {LISTEN['scheduler']}]")
@click.option("--worker-listen", metavar="ADDRESS,...", help=f"[default: {LISTEN['worker']}]")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Workers, each with its weights and cache; cores and memory are divided.",
)
@click.option(
    "--tokenizers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Doors; the second listens 10 ports above the first.",
)
@click.option("--max-num-seqs", metavar="INTEGER", help="Most sequences that run at once.")
@click.option("--max-num-batched-tokens", metavar="INTEGER", help="Most tokens that one step computes.")
@click.option("--max-model-len", metavar="INTEGER", help="Longest prompt and answer together, in tokens.")
@click.option("--block-size", metavar="INTEGER", help="Tokens in a cache block.")
@click.option("--memory-utilization", metavar="NUMBER", help="Share of the memory for all workers together.")
@click.option("--dtype", metavar="TYPE", help="Type that the model computes in.")
@click.option(
    "--quantization", metavar="NAME", help="Form of the weights: auto, fast, or a plugin such as int8."
)
@click.option("--activations", metavar="KIND", help="Inputs of integer weights: auto, float or int8.")
@click.option("--kv-cache-dtype", metavar="TYPE", help="Type of the cache.")
@click.option("--threads", "num_threads", metavar="INTEGER", help="Threads that each worker computes with.")
@click.option("--drain-grace-s", metavar="NUMBER", help="Seconds that running requests get when stopping.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text or json.")
@click.option(
    "--set", "assignments", multiple=True, metavar="SERVICE.SETTING=VALUE", help="Any other setting."
)
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file for every service."
)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=RestartPolicy().limit,
    show_default=True,
    help="Restarts of one service within a minute before giving up.",
)
@click.option("--sample", is_flag=True, help="Stream one answer when ready.")
def command(
    listen: str | None,
    http: str | None,
    no_http: bool,
    scheduler_listen: str | None,
    worker_listen: str | None,
    workers: int,
    tokenizers: int,
    assignments: tuple[str, ...],
    config: Path | None,
    restarts: int,
    sample: bool,
    **given: str | None,
) -> None:
    """Start gateway, tokenizer, scheduler and worker on this machine, and keep them running.

    A service that crashes is started again. Ctrl-C finishes what runs, then stops the doors, the scheduler
    and the worker; a second one kills. Settings without a flag here are reached with --set, such as --set
    tokenizer.max_requests=64; `hundredfold tokenizer --help` and its like list them.
    """
    named = dict(zip(SERVICES, (http, listen, scheduler_listen, worker_listen), strict=True))
    try:
        _check_addresses(named)
        with_http = _has_http(wanted=http is not None, refused=no_http)
        options = HouseOptions(
            config=config,
            listen={service: address for service, address in named.items() if address is not None},
            shared={
                name: value for name, value in given.items() if name in SHARED_SETTINGS and value is not None
            },
            extra=parse_extra(assignments),
            without=frozenset() if with_http else frozenset({"gateway"}),
            replicas={"worker": workers, "tokenizer": tokenizers},
        )
        with tempfile.TemporaryDirectory(prefix="hundredfold-") as runtime_dir:
            house = House(options, Path(runtime_dir))
            model = house.model(DEFAULT_MODEL)
            resolve(model)
            sink = _print_raw if options.shared.get("log_format") == "json" else _print_line
            outcome = asyncio.run(_serve(house, model, RestartPolicy(limit=restarts), sink, sample=sample))
    except (ConfigError, ModelError) as error:
        click.echo(f"hundredfold serve: {error}", err=True)
        sys.exit(EXIT_BAD_CONFIG)
    _report(outcome, options)
    sys.exit(outcome.exit_code)


def _check_addresses(named: Mapping[str, str | None]) -> None:
    """Refuse lists without an address: the default is for who gives none. Raises ``ConfigError``."""
    empty = [s for s, text in named.items() if text is not None and not text.replace(",", " ").strip()]
    if empty:
        raise ConfigError([Problem(_ADDRESS_FLAGS[service], "names no address") for service in empty])


def _has_http(*, wanted: bool, refused: bool) -> bool:
    """Whether the gateway is started: its packages are an extra. Raises ``ConfigError``."""
    if refused and wanted:
        raise ConfigError([Problem("--no-http", "contradicts --http")])
    missing = [name for name in _HTTP_PACKAGES if find_spec(name) is None]
    if missing and wanted:
        raise ConfigError(
            [Problem("--http", f"needs the package '{missing[0]}'; install hundredfold[gateway]")]
        )
    if missing and not refused:
        _print_line("serve", "OpenAI's API is left out; it needs hundredfold[gateway]")
    return not (refused or missing)


async def _serve(house: House, model: str, policy: RestartPolicy, sink: Sink, *, sample: bool) -> Outcome:
    begin = time.monotonic()
    console = Console()

    async def greet() -> None:
        addresses = [Address(name, listen) for name, listen in house.listen.items()]
        async with AsyncClient(house.sockets("tokenizer")) as client:
            try:
                services = await client.info(timeout=10)
            except RequestFailed:
                services = []
            console.print(ready_panel(addresses, model, services, time.monotonic() - begin))
            if sample:
                await stream_sample(client, console)

    supervisor = Supervisor(
        house.specs(model), sink=sink, note=lambda text: _print_line("serve", text), policy=policy
    )
    return await supervisor.run(greet)


def _print_line(name: str, line: str) -> None:
    click.echo(f"{click.style(f'{name:>9}', fg=_COLOURS.get(name.partition('-')[0]))} │ {line}", err=True)


def _print_raw(name: str, line: str) -> None:
    click.echo(line, err=True)


def _report(outcome: Outcome, options: HouseOptions) -> None:
    if not outcome.last_lines:
        click.echo(f"hundredfold serve: {outcome.message}", err=True)
        return
    notes = as_assigned(outcome.last_lines, options.extra)
    lines = escape("\n".join([*outcome.last_lines, *notes]))
    Console(stderr=True).print(
        Panel(lines, title=escape(outcome.message), title_align="left", border_style="red")
    )
