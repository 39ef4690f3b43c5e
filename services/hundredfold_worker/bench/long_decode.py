"""What attention to a part is worth: steps of long sequences that attend to all and to a part, in turns.

Both sides take each step over one cache, one right after the other, so that whatever else the machine does
meets both. What one of them alone reads of it, such as sketches of keys, both write: of one token a step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hundredfold.config import ConfigError
from hundredfold.errors import StartError
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.quality.decode import WARM_STEPS, DecodingRows
from hundredfold_worker.quality.sides import SideError, read_sides
from hundredfold_worker.quality.text import spread
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import open_registries, start_model

_CHUNK = 512
CACHES = ("fp32", "bf16", "int8")


@dataclass(frozen=True, slots=True)
class Load:
    """What is decoded."""

    batch: int
    context: int
    """Tokens that every sequence has before the first step."""
    steps: int
    texts: int
    """Sequences whose prompt is computed; the others have copies of theirs, each in blocks of its own."""


@dataclass(frozen=True, slots=True)
class Times:
    """Median step of a side."""

    seconds: float
    processor_seconds: float
    """Of all threads together."""


@dataclass(frozen=True, slots=True)
class Row:
    """Both sides over one cache encoding."""

    cache: str
    exact: Times
    part: Times


def measure(first: str, second: str, cache: str, load: Load) -> Row:
    """Decode the load on both sides over one cache in an encoding; it is the second's, which the first reads.

    Raises:
        SideError, ConfigError: as ``read_sides``.
        StartError: a model cannot be loaded, or the text is too short.
    """
    sides = (f"{side}{',' if '=' in side else ':'}kv_cache_dtype={cache}" for side in (first, second))
    exact, part = (side.settings for side in read_sides(*sides))
    return _measured(exact, part, load)


def _measured(exact: WorkerSettings, part: WorkerSettings, load: Load) -> Row:
    text = spread(part.model, None, load.texts, load.context + load.steps, load.steps)
    windows = [text.windows[row % load.texts] for row in range(load.batch)]
    parted = DecodingRows(_started(part, load), part.block_size, windows)
    whole = DecodingRows(_started(exact, load), part.block_size, windows, parted.cache)
    with torch.inference_mode():
        for row in range(load.batch):
            if row >= load.texts:
                parted.copy_row(row % load.texts, row)
                continue
            for _ in parted.read_prompt(row, load.context, _CHUNK):
                pass
        sides = [_Timed(rows.steps(load.context, load.steps)) for rows in (whole, parted)]
        for _ in range(load.steps):
            for side in sides:
                side.step()
    return Row(part.kv_cache_dtype, sides[0].median(), sides[1].median())


class _Timed:
    """One side's steps, one at a time."""

    def __init__(self, steps: Iterator[tuple[Tensor, float]]) -> None:
        self._steps = steps
        self._seconds: list[float] = []
        self._processor: list[float] = []

    def step(self) -> None:
        begun = time.process_time()
        _, seconds = next(self._steps)
        self._seconds.append(seconds)
        self._processor.append(time.process_time() - begun)

    def median(self) -> Times:
        """Of the steps that count."""
        return Times(*(statistics.median(all_[WARM_STEPS:]) for all_ in (self._seconds, self._processor)))


def _started(settings: WorkerSettings, load: Load) -> LoadedModel:
    model = start_model(settings, open_registries(settings)).model
    if model.max_model_len < load.context + load.steps:
        raise StartError(
            f"--context {load.context} and --steps {load.steps} are {load.context + load.steps} tokens, "
            f"the model takes {model.max_model_len}"
        )
    return model


def render(rows: list[Row], batch: int) -> Table:
    """A line for each cache."""
    heads = ("cache", "A, ms a step", "B", "A, tokens/s", "B", "B times as fast", "by cpu time")
    table = Table(*heads)
    for row in rows:
        times = row.exact.seconds, row.part.seconds
        by_processor = row.exact.processor_seconds / row.part.processor_seconds
        table.add_row(
            row.cache,
            *(f"{1e3 * seconds:.1f}" for seconds in times),
            *(f"{batch / seconds:.1f}" for seconds in times),
            f"{times[0] / times[1]:.2f}",
            f"{by_processor:.2f}",
        )
    return table


def _caches(_: click.Context, __: click.Parameter, given: str) -> list[str]:
    return given.split(",")


@click.command(context_settings={"show_default": True})
@click.argument("a")
@click.argument("b")
@click.option("--batch", type=click.IntRange(1), default=16, help="Sequences side by side.")
@click.option("--context", type=click.IntRange(1), default=7700, help="Tokens of each before the first step.")
@click.option("--steps", type=click.IntRange(WARM_STEPS + 1), default=18, help="Steps of each side.")
@click.option(
    "--texts", type=click.IntRange(1), default=2, help="Sequences that are computed; others are copies."
)
@click.option("--caches", callback=_caches, default=",".join(CACHES), help="Encodings of the cache, in turn.")
def command(a: str, b: str, batch: int, context: int, steps: int, texts: int, caches: list[str]) -> None:
    """Time decode steps of A and B, such as attention to all and to a part, in turns over one cache.

    A and B are MODEL:key=value,key=value as `hundredfold quality` takes them; without a model, B has A's.
    B's attention makes the cache, and A's has to read such a one.
    """
    load = Load(batch, context, steps, min(texts, batch))
    try:
        rows = [measure(a, b, cache, load) for cache in caches]
    except (SideError, ConfigError) as error:
        raise click.UsageError(str(error)) from error
    except StartError as error:
        raise click.ClickException(str(error)) from error
    Console(width=120).print(render(rows, batch))
