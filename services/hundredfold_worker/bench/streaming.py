"""What ``weight_memory`` costs: decoding with weights in memory and streamed, beside the disk's own speed.

``python -m hundredfold_worker.bench.streaming [MODEL]`` prints a table: batch 1 with all weights in memory,
and with the least memory that the model takes, once with a file that the system keeps in its spare memory,
and once with one that has to come from the disk in every step.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from hundredfold.config import load
from hundredfold.config.paths import cache_dir
from hundredfold.errors import StartError
from hundredfold.models import DEFAULT_MODEL
from hundredfold_worker.bench.machine import read_bandwidth
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.model.decoder import Decoder
from hundredfold_worker.model.offload import StreamedLayers
from hundredfold_worker.quality.scored import Scored
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.sizes import show
from hundredfold_worker.startup import open_registries, start_model

PROMPT, TOKENS = 32, 24
_FILE = 256 << 20
_LEAST = re.compile(r"the least for this model is (\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One way of keeping weights."""

    name: str
    weight_bytes: int
    read_bytes: int
    """In each step, from the file."""
    seconds: float
    """Of a step, the middle one."""
    ids: tuple[int, ...]


def measure(model: str) -> list[Row]:
    """Every row; raises ``StartError`` when the model cannot be loaded or streamed."""
    whole = _start(model, None)
    rows = [_row("all in memory", whole, lambda: None)]
    del whole
    least = _least(model)
    streamed = _start(model, least)
    stream = _stream(streamed)
    rows.append(_row("streamed, file kept by the system", streamed, lambda: None))
    rows.append(_row("streamed, file from disk", streamed, stream.forget))
    return rows


def disk_bandwidth() -> float:
    """Bytes per second of reading a file in the cache directory that is not in memory."""
    directory = cache_dir() / "weights"
    directory.mkdir(parents=True, exist_ok=True)
    piece = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(_FILE // len(piece)):
            file.write(piece)
        file.flush()
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        buffer, begun = bytearray(8 << 20), time.perf_counter()
        file.seek(0)
        while file.readinto(buffer):
            pass
        return _FILE / (time.perf_counter() - begun)


@dataclass(frozen=True, slots=True)
class _Streamed:
    forget: Callable[[], None]
    nbytes: int


def _stream(model: LoadedModel) -> _Streamed:
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder) or not isinstance(decoder.layers, StreamedLayers):
        return _Streamed(lambda: None, 0)
    stream = decoder.layers.stream
    return _Streamed(stream.file.forget, stream.nbytes)


def _start(model: str, budget: int | None) -> LoadedModel:
    settings = load(WorkerSettings, file=None, flags={"model": model, "weight_memory": budget})
    return start_model(settings, open_registries(settings)).model


def _least(model: str) -> int:
    """The smallest budget that the model takes: what the refusal of one byte says."""
    try:
        _start(model, 1)
    except StartError as error:
        found = _LEAST.search(str(error))
        if found is None:
            raise
        return int(found.group(1))
    raise StartError("a budget of one byte was taken")


def _row(name: str, model: LoadedModel, before: Callable[[], None]) -> Row:
    scored = Scored(model, 32, PROMPT + TOKENS + 1)
    ids: list[int] = []
    times: list[float] = []
    with torch.inference_mode():
        logits = scored.logits(torch.arange(PROMPT) % model.vocab_size, 0)
        for step in range(TOKENS):
            ids.append(int(logits[-1].argmax()))
            before()
            begun = time.perf_counter()
            logits = scored.logits(torch.tensor(ids[-1:]), PROMPT + step)
            times.append(time.perf_counter() - begun)
    return Row(name, model.weight_bytes, _stream(model).nbytes, sorted(times)[len(times) // 2], tuple(ids))


def main(arguments: list[str]) -> int:
    """Print the table; exit code 1 when streaming changed an answer."""
    try:
        rows = measure(arguments[0] if arguments else DEFAULT_MODEL)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    table = Table("weights", "in memory", "read a step", "ms a token", "tokens/s", "read at", "same ids")
    for row in rows:
        read = f"{row.read_bytes / row.seconds / 1e9:.2f} GB/s" if row.read_bytes else "-"
        table.add_row(
            row.name,
            show(row.weight_bytes),
            show(row.read_bytes) if row.read_bytes else "-",
            f"{1e3 * row.seconds:.1f}",
            f"{1 / row.seconds:.1f}",
            read,
            "yes" if row.ids == rows[0].ids else "NO",
        )
    Console().print(table)
    sys.stdout.write(
        f"memory reads {read_bandwidth() / 1e9:.1f} GB/s, the disk {disk_bandwidth() / 1e9:.2f} GB/s\n"
    )
    return 0 if all(row.ids == rows[0].ids for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
