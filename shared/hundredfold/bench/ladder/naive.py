"""Measures the naive way, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hundredfold.bench.ceilings import Ceilings
from hundredfold.bench.environments import EnvironmentFailed, EnvironmentSpec, prepare
from hundredfold.bench.ladder.rows import Row, Work
from hundredfold.bench.ladder.stages import INPUT_LEN, NaiveStage, Scale
from hundredfold.models import resolve

SCRIPT_ROOM = "hundredfold_worker"
TRANSFORMERS = "transformers>=5,<6"
RUN_LIMIT_S = 400.0
"""Far more than it takes on a quiet machine."""
LOAD_TITLE = "1 request"


class NaiveFailed(Exception):
    """The baseline could not be measured; the message says why."""


def environment() -> EnvironmentSpec:
    """What the baseline needs: our torch, and transformers. `make bench-peers` shares it."""
    return EnvironmentSpec(
        "transformers", [f"torch=={_plain(version('torch'))}", TRANSFORMERS, "accelerate", "gguf"]
    )


def measure_naive(
    stage: NaiveStage, model: str, scale: Scale, python: Path | None, ceilings: Ceilings | None
) -> Row:
    """Run the baseline; ``python`` is an interpreter that has what it needs, made when None.

    Raises NaiveFailed.
    """
    found = _run(stage, model, scale, python)
    rate = float(found["tokens_per_s"])
    tokens_s = 1.0 / rate
    # Every token reads every weight and is multiplied with it; the prompt's share is in the rate.
    computed = (INPUT_LEN + scale.output_len - 1) / scale.output_len
    work = Work(tokens_s, float(found["weight_bytes"]), 2.0 * float(found["weights"]) * computed)
    return Row(
        stage=stage.key,
        title=stage.title,
        load=LOAD_TITLE,
        precision=f"{stage.dtype}, dequantized",
        tokens_per_s=rate,
        ms_per_token=float(found["tpot_ms"]),
        ttft_ms=float(found["ttft_ms"]),
        peak_memory_bytes={"transformers": int(found["peak_bytes"])},
        read_share=work.read_share(ceilings),
        operations_share=work.operations_share(ceilings, "float"),
    )


def _run(stage: NaiveStage, model: str, scale: Scale, python: Path | None) -> dict[str, Any]:
    room = find_spec(SCRIPT_ROOM)
    if room is None or not room.submodule_search_locations:
        raise NaiveFailed("the baseline's script is the worker's: install hundredfold[worker]")
    script = Path(next(iter(room.submodule_search_locations))) / "bench" / "naive.py"
    try:
        interpreter = python or prepare(environment())
    except EnvironmentFailed as failure:
        raise NaiveFailed(f"its environment could not be made: {failure}") from failure
    options = ["--dtype", stage.dtype, "--input-len", str(INPUT_LEN), "--output-len", str(scale.output_len)]
    command = [str(interpreter), str(script), str(resolve(model).path), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NaiveFailed(f"it took more than {RUN_LIMIT_S:g} s") from None
    except OSError as error:
        raise NaiveFailed(f"{interpreter}: {error.strerror}") from None
    if done.returncode != 0:
        raise NaiveFailed((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError) as error:
        raise NaiveFailed(f"it printed no figures: {error}") from error


def _plain(text: str) -> str:
    """A version without its build: 2.13.0 of 2.13.0+cpu."""
    return text.partition("+")[0]
