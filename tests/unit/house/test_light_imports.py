"""What needs no torch loads none: every module of the light rooms is imported in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.repo import ROOT

IMPORT_ALL = """
import importlib, sys
heavy = set(sys.argv[1].split(","))
for name in sys.argv[2:]:
    importlib.import_module(name)
    loaded = heavy & set(sys.modules)
    if loaded:
        sys.exit(f"{name} loads {', '.join(sorted(loaded))}")
"""

NEEDS_TORCH = "hundredfold.plugin.testing"
"""The suite by which plugins prove themselves computes."""


def modules(package: str) -> list[str]:
    """Names of all modules below a package, read from the files."""
    room = ROOT / ("shared" if package == "hundredfold" else "services")
    paths = sorted((room / package.replace(".", "/")).rglob("*.py"))
    names = [
        ".".join(path.relative_to(room).with_suffix("").parts).removesuffix(".__init__") for path in paths
    ]
    return [n for n in names if not n.startswith(NEEDS_TORCH) and not n.endswith(".__main__")]


def import_all(names: list[str], heavy: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_ALL, heavy, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("hundredfold", "torch,transformers"),
        ("hundredfold_tokenizer", "torch,transformers"),
        ("hundredfold_gateway", "torch,transformers,tokenizers,jinja2"),
        ("hundredfold_scheduler", "torch,transformers,tokenizers,jinja2"),
        ("hundredfold_scheduler.core", "torch,transformers,tokenizers,jinja2,grpc,google.protobuf"),
    ],
)
def test_no_module_loads_what_it_does_not_need(package: str, heavy: str):
    names = modules(package)
    assert len(names) > 1
    done = import_all(names, heavy)
    assert done.returncode == 0, done.stderr


def test_a_heavy_import_is_found():
    done = import_all(["json"], "re")
    assert done.returncode != 0
    assert "json loads re" in done.stderr
