"""Every test that REPORTS.md names exists, and none of its complete sections lacks a number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.repo import ROOT

TESTS = ROOT / "tests"
NAMED = re.compile(r"`([\w/.-]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (\d+) \|.*\| (.+) \|$", re.M)

COMPLETE = {
    "B": {17, 18, 19, 20, 21, 22, 23, 25, 26, 27, 28},
    "C": {29, 30, 32, 34, 35, 36, 37, 39, 40, 41},
    "E": {56, 57, 58, 59, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72},
    "F": {75, 76, 77, 78},
    "G": {79, 80, 82, 83, 84, 85, 87, 88, 89, 90, 92, 93, 94, 95, 96},
    "H": {98, 99, 100, 101, 105, 106, 107, 108, 109, 110, 111, 112, 113},
    "N": {162, 164, 165, 166, 167, 168, 169, 170},
}
"""Section to the numbers it has to speak of."""


def report() -> str:
    return (TESTS / "REPORTS.md").read_text(encoding="utf-8")


def names_in(file: Path) -> set[str]:
    """Names of a file's tests, without importing it; none when there is no such file."""
    if not file.is_file():
        return set()
    functions = (
        node
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {function.name for function in functions if function.name.startswith("test_")}


def missing(text: str) -> Iterator[str]:
    named = NAMED.findall(text)
    known = {path: names_in(TESTS / path) for path, _ in named}
    return (f"{path}::{name}" for path, name in named if name not in known[path])


def numbers(text: str, section: str) -> set[int]:
    """Numbers of a section's rows that name a test or a reason."""
    body = text.split(f"\n## {section}. ")[1].split("\n## ")[0]
    return {int(number) for number, held in ROW.findall(body) if held.strip()}


def test_every_named_test_exists():
    assert len(NAMED.findall(report())) > 150
    assert list(missing(report())) == []


def test_every_name_of_a_test_is_checked():
    assert report().count("::") - len(NAMED.findall(report())) == 1  # the one that explains the form


def test_complete_sections_speak_of_every_number():
    assert {section: numbers(report(), section) for section in COMPLETE} == COMPLETE


def test_a_name_of_nothing_is_found():
    here = "unit/house/test_reports.py"
    text = f"`{here}::test_a_name_of_nothing_is_found` `{here}::test_gone` `unit/gone.py::test_gone`"
    assert list(missing(text)) == [f"{here}::test_gone", "unit/gone.py::test_gone"]
