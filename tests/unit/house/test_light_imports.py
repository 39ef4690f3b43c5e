"""What needs no torch loads none: every module of the light rooms is imported in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, pkgutil, sys
heavy = set(sys.argv[2].split(","))
root = importlib.import_module(sys.argv[1])
names = [sys.argv[1], *(m.name for m in pkgutil.walk_packages(root.__path__, sys.argv[1] + "."))]
for name in names:
    if name.endswith(".__main__"):
        continue
    importlib.import_module(name)
    loaded = heavy & set(sys.modules)
    if loaded:
        sys.exit(f"{name} loads {', '.join(sorted(loaded))}")
print(len(names))
"""


def import_all(package: str, heavy: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_ALL, package, heavy]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("hundredfold", "torch,transformers"),
        ("hundredfold_tokenizer", "torch,transformers"),
        ("hundredfold_scheduler", "torch,transformers,tokenizers,jinja2"),
        ("hundredfold_scheduler.core", "torch,transformers,tokenizers,jinja2,grpc,google.protobuf"),
    ],
)
def test_no_module_loads_what_it_does_not_need(package: str, heavy: str):
    done = import_all(package, heavy)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1


def test_a_heavy_import_is_found():
    done = import_all("json", "re")
    assert done.returncode != 0
    assert "json loads re" in done.stderr
