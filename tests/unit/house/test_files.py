"""One file, one job, said in its first line; a file of over 400 lines has a second job inside."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.repo import ROOT, hand_written

MAX_LINES = 400
CODE = (".py", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".sh")


def too_long(paths: list[Path]) -> list[str]:
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    return [f"{path}: {lines} lines" for path, lines in counts.items() if lines > MAX_LINES]


def without_docstring(paths: list[Path]) -> list[str]:
    silent = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        first_line = (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]
        if source.strip() and not first_line.strip():
            silent.append(str(path))
    return silent


def test_no_hand_written_file_is_longer_than_400_lines():
    assert too_long(hand_written(*CODE)) == []


def test_every_python_file_says_its_job_first():
    assert without_docstring(hand_written(".py")) == []


def test_every_shell_script_and_makefile_says_its_job_first():
    scripts = [*hand_written(".sh"), ROOT / ".ci" / "run", ROOT / "Makefile"]
    for script in scripts:
        lines = script.read_text(encoding="utf-8").splitlines()
        first = next(line for line in lines if not line.startswith("#!"))
        assert first.startswith("# "), script


@pytest.mark.parametrize("lines", [MAX_LINES, MAX_LINES + 1])
def test_the_line_limit_is_the_limit(tmp_path: Path, lines: int):
    path = tmp_path / "x.py"
    path.write_text("x = 1\n" * lines)
    assert bool(too_long([path])) is (lines > MAX_LINES)


def test_a_file_without_a_docstring_is_found(tmp_path: Path):
    path = tmp_path / "x.py"
    path.write_text("x = 1\n")
    assert without_docstring([path]) == [str(path)]
