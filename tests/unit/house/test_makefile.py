"""The Makefile's commands say what they are meant to say."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_up_starts_with_an_int8_cache_and_no_variable_is_undefined() -> None:
    """An undefined variable is an empty word, and nobody would notice."""
    command = ["make", "--dry-run", "--always-make", "--warn-undefined-variables", "up"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "undefined variable" not in printed.stderr
    assert '--model "smollm2-135m" --kv-cache-dtype int8 --sample' in printed.stdout
