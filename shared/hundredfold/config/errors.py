"""What is wrong with a configuration, all of it at once, in words for whoever wrote it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    where: str
    """Where the value came from: ``--max-num-seqs``, an environment variable, or a file and section."""
    text: str
    """Names the field, the value and the limit."""


class ConfigError(ValueError):
    """The configuration cannot be used; ``str()`` is one friendly text with a line per problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [f"  {p.where}: {p.text}" for p in self.problems]
        super().__init__("\n".join(["the configuration cannot be used:", *lines]))


def suggest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{near[0]}'?)" if near else ""
