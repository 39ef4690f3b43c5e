"""`hundredfold`: finds the command that was asked for and imports that one alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

import click

GROUP = "hundredfold.commands"
"""Entry points that bring commands: those of our services, and a stranger's."""

_SUBGROUP = "bench-"
"""Entry points named so belong to `hundredfold bench`, which finds them itself."""


@dataclass(frozen=True, slots=True)
class Known:
    """A command of ours: its line in the help, and its module when it lives in this package."""

    help: str
    module: str | None = None


COMMANDS = {
    "serve": Known("Start all services on this machine.", "hundredfold.cli.serve"),
    "gateway": Known("Run the gateway service, OpenAI's API over HTTP."),
    "tokenizer": Known("Run the tokenizer service, the public door."),
    "scheduler": Known("Run the scheduler service."),
    "worker": Known("Run a worker service."),
    "generate": Known("Stream an answer to the terminal.", "hundredfold.cli.generate"),
    "info": Known("Show what runs and why it was chosen.", "hundredfold.cli.info"),
    "plugins": Known("List plugins: what loaded, what failed and why.", "hundredfold.cli.plugins"),
    "models": Known("Fetch and list models.", "hundredfold.cli.models"),
    "bench": Known("Measure speed.", "hundredfold.cli.bench"),
    "estimate": Known("Tell what a model needs and gives, without loading it."),
    "diagnose": Known("Find out why a model's output went wrong."),
    "quality": Known("Compare what two ways of serving a model say."),
    "quantize": Known("Make a quantized checkpoint of a model."),
}
"""Told apart from the modules so that `hundredfold --help` imports none of them."""

_EXTRAS = {"torch": "worker", "starlette": "gateway", "uvicorn": "gateway"}
"""Packages that an extra of ours brings."""


class LazyGroup(click.Group):
    """Lists commands without importing them, and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Ours in their order, then a stranger's."""
        return [*COMMANDS, *sorted(name for name in _brought() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Raises ``UsageError`` when a package that it needs is not installed."""
        load = _loader(cmd_name)
        if load is None:
            return None
        try:
            return _as_click(load(), cmd_name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0].startswith("hundredfold"):
                raise
            extra = _EXTRAS.get(error.name)
            hint = f"; install hundredfold[{extra}]" if extra else ""
            raise click.UsageError(f"'{cmd_name}' needs the package '{error.name}'{hint}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands in the help."""
        brought = _brought()
        rows = []
        for name in self.list_commands(ctx):
            known = COMMANDS.get(name)
            rows.append((name, known.help if known else f"From {_origin(brought[name][0])}."))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.command(cls=LazyGroup, context_settings={"max_content_width": 110})
@click.version_option(version("hundredfold"), prog_name="hundredfold")
def cli() -> None:
    """Serve large language models over gRPC."""


def run() -> None:
    """The console script."""
    cli.main(prog_name="hundredfold")


def _loader(name: str) -> Callable[[], Any] | None:
    known = COMMANDS.get(name)
    if known is not None and known.module is not None:
        module = known.module
        return lambda: import_module(module).command
    found = list(entry_points(group=GROUP, name=name)) if not name.startswith(_SUBGROUP) else []
    if not found:
        return None
    if len(found) > 1:
        both = " and ".join(sorted(map(_origin, found)))
        raise click.UsageError(f"two packages bring a command '{name}': {both}; uninstall one")
    return found[0].load


def _brought() -> dict[str, list[EntryPoint]]:
    commands: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        if not point.name.startswith(_SUBGROUP):
            commands.setdefault(point.name, []).append(point)
    return commands


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"


def _as_click(command: Any, name: str) -> click.Command:
    """A Typer app has a click of its own inside, so it gets the arguments as they are."""
    if isinstance(command, click.Command):
        return command
    from typer import Typer
    from typer.main import get_command

    if not isinstance(command, Typer):
        raise TypeError(
            f"command '{name}' is a {type(command).__name__}, wanted is a click command or a Typer"
        )
    inner = get_command(command)

    def forward(arguments: tuple[str, ...]) -> None:
        sys.exit(inner.main(args=list(arguments), prog_name=f"hundredfold {name}"))

    return click.Command(
        name,
        callback=forward,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )
