"""Prints what pyproject.toml requires, so that an image layer can hold it without our code.

``requirements.py FILE [EXTRA]`` prints the project's dependencies, or those that EXTRA adds, one a line.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extra: str | None) -> list[str]:
    """The project's dependencies, or those that an extra adds."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    found: list[str] = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)))
