"""Whom a scheme is for: layers by name, by pattern or by class."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hundredfold.plugin.patterns import compile_pattern

PATTERN = "re:"
MAX_TARGETS = 100_000
MAX_PATTERNS = 1000
TABLES = ("embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings")
"""Last parts of the names of embedding tables; everything else that is a matrix is a linear layer."""

Rank = tuple[int, str]
"""How closely a target fits: 0 for a name, 1 for a pattern, 2 for a class; then the target's own text."""


class Targets:
    """A list of targets that can be asked about a layer."""

    def __init__(self, key: str, targets: Sequence[str]) -> None:
        """Raises ``ValueError`` naming ``key`` when a pattern is malformed or there are too many."""
        patterns = sorted({target for target in targets if target.startswith(PATTERN)})
        if len(patterns) > MAX_PATTERNS:
            raise ValueError(f"{key} has {len(patterns)} patterns, the limit is {MAX_PATTERNS}")
        self._patterns: list[tuple[str, re.Pattern[str]]] = [
            (target, compile_pattern(target.removeprefix(PATTERN), key)) for target in patterns
        ]
        self._plain = frozenset(targets) - set(patterns)

    def rank(self, name: str) -> Rank | None:
        """The best that fits the layer ``name``, ``None`` when none does. Lower is closer."""
        if name in self._plain:
            return 0, name
        for target, pattern in self._patterns:
            if pattern.match(name):
                return 1, target
        for kind in ("Embedding" if name.rsplit(".", 1)[-1] in TABLES else "Linear", "Module"):
            if kind in self._plain:
                return 2, kind
        return None


def text_list(value: object, key: str) -> list[str]:
    """A list of texts. Raises ``ValueError`` naming ``key``."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{key} is {str(value)[:80]!r}, expected is a list of texts")
    if len(value) > MAX_TARGETS:
        raise ValueError(f"{key} has {len(value)} entries, the limit is {MAX_TARGETS}")
    return value
