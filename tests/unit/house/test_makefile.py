"""The Makefile's commands say what they are meant to say."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hundredfold.bench.ladder.stages import FULL, stages
from hundredfold.cli.serve import command as serve

ROOT = Path(__file__).parents[3]


def test_up_starts_with_an_int8_cache_and_no_variable_is_undefined() -> None:
    """An undefined variable is an empty word, and nobody would notice."""
    command = ["make", "--dry-run", "--always-make", "--warn-undefined-variables", "up"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "undefined variable" not in printed.stderr
    assert '--model "smollm2-135m" --kv-cache-dtype int8 --quantization fast --sample' in printed.stdout


def test_serve_knows_the_flags_that_up_gives() -> None:
    flags = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("SERVE ?="))
    known = {name for option in serve.params for name in option.opts}
    assert {word for word in flags.split() if word.startswith("--")} <= known


def test_the_ladders_default_and_compose_start_as_up_does() -> None:
    default = stages(FULL)[-1]
    assert default.settings == {"worker.kv_cache_dtype": "int8", "worker.quantization": "fast"}
    compose = (ROOT / "docker-compose.yml").read_text()
    assert "HUNDREDFOLD_WORKER_KV_CACHE_DTYPE: ${HUNDREDFOLD_KV_CACHE_DTYPE:-int8}" in compose
    assert "HUNDREDFOLD_WORKER_QUANTIZATION: ${HUNDREDFOLD_QUANTIZATION:-fast}" in compose
