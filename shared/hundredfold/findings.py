"""What a check of a model found: what it is, how bad, the likely cause, and what helps."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@enum.unique
class Severity(enum.Enum):
    """How much a finding matters, the worst first."""

    ERROR = "error"
    """Output is wrong, or answers do not end."""
    WARNING = "warning"
    """Output may be wrong, or wrong elsewhere."""
    FINE = "fine"
    """Looked at, nothing found."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One."""

    name: str
    """Short and stable, such as ``double-bos``: what tests and scripts look for."""
    severity: Severity
    said: str
    """What was seen, with names and numbers."""
    cause: str = ""
    """What it most likely comes from."""
    remedy: str = ""
    """What to do."""


def fine(name: str, said: str) -> Finding:
    """Nothing found."""
    return Finding(name, Severity.FINE, said)
