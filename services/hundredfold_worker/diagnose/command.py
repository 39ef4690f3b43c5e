"""The command: one model, a prompt, perhaps a second model to hold it against."""

from __future__ import annotations

import sys

import click

from hundredfold.config import ConfigError
from hundredfold.errors import StartError
from hundredfold_worker.openmp import calm_openmp
from hundredfold_worker.quality.sides import SideError, read_sides

PROMPT = (
    "The river Rhine begins in the Alps and flows north through Germany and the Netherlands. "
    "People have lived beside it for thousands of years. Its water"
)

_HELP = """Find out why MODEL's output went wrong: every finding has its likely cause and remedy.

Looks at special tokens and the chat template, at positions and rotary settings, at where the attention of a
prompt goes, at what comes out at several temperatures, and, --against another model of the same shape
(usually the dense one), at each layer's products.

\b
    hundredfold diagnose ./my-model
    hundredfold diagnose ./my-model-gptq:kv_cache_dtype=int8 --against ./my-model:dtype=fp32

MODEL and --against are as in `hundredfold quality`: MODEL:key=value,… with settings of `hundredfold worker`.
Exit code 1 when something is wrong.
"""


@click.command(name="diagnose", help=_HELP, context_settings={"max_content_width": 110})
@click.argument("model")
@click.option("--prompt", default=PROMPT, help="A text that the model should go on with well.")
@click.option("--against", help="A model, or settings of the same one, that is known to be right.")
@click.option("--tokens", type=click.IntRange(1, 512), default=24, show_default=True, help="To generate.")
@click.option("--files-only", is_flag=True, help="Look at the files; load nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: str, prompt: str, against: str | None, tokens: int, files_only: bool, as_json: bool
) -> None:
    """See ``_HELP``."""
    try:
        side, other = read_sides(model, against or "")
    except (SideError, ConfigError) as error:
        raise click.UsageError(str(error)) from error
    calm_openmp()
    from rich.console import Console

    from hundredfold_worker.diagnose.diagnosis import Question, diagnose  # torch: not for --help
    from hundredfold_worker.diagnose.report import render, to_json

    question = Question(side, prompt, None if against is None else other, tokens, not files_only)
    with Console(stderr=True).status("files") as status:
        try:
            found = diagnose(question, status.update)
        except StartError as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        sys.stdout.write(to_json(found) + "\n")
    else:
        Console().print(render(found))
    sys.exit(1 if found.wrong else 0)
