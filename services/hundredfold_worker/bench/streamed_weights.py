"""What ``weight_memory`` costs: decoding with weights in memory and streamed, beside what both can read.

``python -m hundredfold_worker.bench.streaming [MODEL]`` prints a table: steps of 1 and of 64 sequences with
all weights in memory, and with half of that memory, once with a file that the system keeps in its spare
memory, and once with one that comes from the disk in every step.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hundredfold.config import load
from hundredfold.config.paths import cache_dir
from hundredfold.errors import StartError
from hundredfold.models import DEFAULT_MODEL
from hundredfold_worker.bench.machine import read_bandwidth
from hundredfold_worker.model import LoadedModel
from hundredfold_worker.model.decoder import Decoder
from hundredfold_worker.model.offload import Stream, StreamedLayers
from hundredfold_worker.model.offload.reader import Reader
from hundredfold_worker.quality.decode import DecodingRows
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.sizes import show
from hundredfold_worker.startup import open_registries, start_model

BATCHES = (1, 64)
STEPS, UNTIMED = 24, 4
_FILE = 256 << 20
_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One way of keeping weights, with one number of sequences."""

    name: str
    batch: int
    weight_bytes: int
    """In memory."""
    read_bytes: int
    """In each step, from the file."""
    disk_bytes: int
    """Of them what the disk gave, as the system counts it."""
    seconds: float
    """Of a step, the middle one."""
    ids: Tensor
    """int64[steps, batch]: the best ones."""


def measure(model: str) -> tuple[Row, ...]:
    """Every row; raises ``StartError`` when the model cannot be loaded or streamed."""
    whole = _start(model, None)
    budget = whole.model.weight_bytes // 2
    rows = [_row("in memory", whole, batch) for batch in BATCHES]
    del whole
    streamed = _start(model, budget)
    stream = _stream(streamed.model)
    if stream is None:
        raise StartError("half of the memory holds every layer: nothing is streamed")
    rows += [_row("half in a file, kept by the system", streamed, batch) for batch in BATCHES]
    stream.file.forget()  # what is not in memory is read past it, so that it stays away
    rows += [_row("half in a file, from the disk", streamed, batch) for batch in BATCHES]
    return tuple(rows)


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
        buffer, reader = memoryview(mmap.mmap(-1, _PIECE)), Reader(file.fileno(), _FILE)
        begun = time.perf_counter()
        for offset in range(0, _FILE, _PIECE):
            reader.read(offset, buffer)
        return _FILE / (time.perf_counter() - begun)


@dataclass(frozen=True, slots=True)
class _Side:
    model: LoadedModel
    block_size: int


def _start(model: str, budget: int | None) -> _Side:
    settings = load(WorkerSettings, file=None, flags={"model": model, "weight_memory": budget})
    return _Side(start_model(settings, open_registries(settings)).model, settings.block_size)


def _stream(model: LoadedModel) -> Stream | None:
    """What reads its layers; ``None`` where all of them are in memory."""
    decoder = getattr(model, "decoder", None)
    layers = decoder.layers if isinstance(decoder, Decoder) else ()
    return layers.stream if isinstance(layers, StreamedLayers) else None


def _row(name: str, side: _Side, batch: int) -> Row:
    ids = torch.arange(batch * (STEPS + UNTIMED)) * 7 % side.model.vocab_size
    windows = [tuple(row) for row in ids.view(batch, -1).tolist()]
    rows = DecodingRows(side.model, side.block_size, windows)
    said: list[Tensor] = []
    times: list[float] = []
    disk = 0
    with torch.inference_mode():
        for step, (logits, spent) in enumerate(rows.steps(0, STEPS + UNTIMED)):
            if step == UNTIMED - 1:
                disk = _from_disk()
            times.append(spent)
            said.append(logits.argmax(1))
    stream = _stream(side.model)
    return Row(
        name,
        batch,
        side.model.weight_bytes,
        0 if stream is None else stream.nbytes,
        (_from_disk() - disk) // STEPS,
        statistics.median(times[UNTIMED:]),
        torch.stack(said),
    )


def _from_disk() -> int:
    """Bytes that this process had the disk read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def _whole(rows: tuple[Row, ...], row: Row) -> Row:
    """The row with the same batch and everything in memory."""
    return next(other for other in rows if other.batch == row.batch)


def _print(rows: tuple[Row, ...], memory: float, disk: float) -> bool:
    table = Table(
        "weights", "batch", "in memory", "read a step", "ms a step", "tokens/s", "reading alone, ms"
    )
    same = True
    for row in rows:
        whole = _whole(rows, row)
        same &= torch.equal(row.ids, whole.ids)
        from_disk = 2 * row.disk_bytes > row.read_bytes  # a page that was missing is no disk at work
        source, speed = (row.disk_bytes, disk) if from_disk else (whole.weight_bytes, memory)
        table.add_row(
            row.name,
            str(row.batch),
            show(row.weight_bytes),
            f"{show(row.read_bytes)}, {show(row.disk_bytes)} from disk" if row.read_bytes else "-",
            f"{1e3 * row.seconds:.1f}",
            f"{row.batch / row.seconds:.1f}",
            f"{1e3 * source / speed:.1f}",
        )
    Console(width=140).print(table)
    said = "the same ids" if same else "OTHER IDS than from memory"
    sys.stdout.write(f"memory reads {memory / 1e9:.1f} GB/s, the disk {disk / 1e9:.2f} GB/s; {said}\n")
    return same


def main(arguments: list[str]) -> int:
    """Print the table; exit code 1 when streaming changed an answer."""
    try:
        rows = measure(arguments[0] if arguments else DEFAULT_MODEL)
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0 if _print(rows, read_bandwidth(), disk_bandwidth()) else 1
