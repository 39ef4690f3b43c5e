"""The repository itself, for checks on its files."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
"""Endings of files that `make proto` writes."""


def files(*suffixes: str) -> list[Path]:
    """Files that git tracks or would, with one of the suffixes; all when none is named."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = sorted({ROOT / name for name in listed.split("\0") if name})
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def hand_written(*suffixes: str) -> list[Path]:
    """The same without generated files."""
    return [path for path in files(*suffixes) if not path.name.endswith(GENERATED)]


def packages(room: str) -> list[str]:
    """Import names of the packages in ``services`` or ``plugins``."""
    return sorted(
        path.name for path in (ROOT / room).glob("hundredfold_*") if (path / "__init__.py").exists()
    )
