"""What is shown once the house is ready can be typed as it stands."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from hundredfold.supervisor.greeting import Address, ready_panel

ADDRESSES = [Address("gateway", "127.0.0.1:8000"), Address("tokenizer", "127.0.0.1:50051")]


def shown(width: int = 80) -> list[str]:
    """The panel's lines on a terminal, without their frame."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(ready_panel(ADDRESSES, "m", [], 3.0))
    return [line.strip("│ ") for line in console.export_text().splitlines()]


def test_no_example_is_broken_within_a_word_of_it() -> None:
    lines = shown()
    first = next(number for number, line in enumerate(lines) if line.startswith("$"))
    examples = lines[first : lines.index("Ctrl-C finishes what runs, then stops.") - 1]
    ends = [not line.endswith("\\") for line in examples]
    begins = [line.startswith("$") for line in examples]
    assert begins == [True, *ends[:-1]], examples
    assert ends[-1]


def test_the_command_is_the_one_that_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "hundredfold"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for called, path, wanted in (
        (str(program), "/usr/bin", str(program)),
        (str(program), str(tmp_path), "hundredfold"),
        ("-c", "/usr/bin", "hundredfold"),
    ):
        monkeypatch.setattr(sys, "argv", [called])
        monkeypatch.setenv("PATH", path)
        lines = shown(width=500)
        assert any(line.startswith(f"$ {wanted} generate") for line in lines), (called, path)
