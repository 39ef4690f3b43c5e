"""Rules by which a checkpoint stores some of its layers otherwise: GPTQModel's and auto-round's two kinds.

``dynamic`` of GPTQModel maps regular expressions to what differs; the first that matches a layer's name from
its start counts, and one that begins with ``-:`` says that the layer stayed as it was.
``extra_config`` of auto-round maps layers' names, or else regular expressions found anywhere in a name; what
has 16 bits or more stayed as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hundredfold.plugin.patterns import compile_pattern
from hundredfold.plugin.section import Section

MAX_RULES = 10_000
"""auto-round names every layer that differs; regular expressions are at most ``MAX_PATTERNS``."""
MAX_PATTERNS = 256
UNQUANTIZED_BITS = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerRules(Generic[T]):
    """What is known of a layer's format, by its name. ``None`` says that a layer stayed as it was."""

    common: T
    exact: Mapping[str, T | None]
    patterns: tuple[tuple[Callable[[str], re.Match[str] | None], T | None], ...]

    def of(self, layer: str) -> T | None:
        """The layer's own format: that of its name, of the first pattern that matches, or the common one."""
        if layer in self.exact:
            return self.exact[layer]
        return next((made for matches, made in self.patterns if matches(layer)), self.common)


def read_rules(section: Section, make: Callable[[Section], T]) -> LayerRules[T]:
    """A section's rules; ``make`` turns the section as it is for a layer into what the format needs.

    Raises ``ValueError`` naming the rule that is wrong.
    """
    dynamic, extra = section.table("dynamic"), section.table("extra_config")
    if len(dynamic) + len(extra) > MAX_RULES:
        raise ValueError(f"{len(dynamic) + len(extra)} rules for layers, the limit is {MAX_RULES}")

    def made(key: str, overrides: object) -> T | None:
        if not isinstance(overrides, Mapping):
            raise ValueError(f"'{section.place}{key}' is no object")
        changed: Mapping[str, Any] = {**section.values, **overrides}
        own = Section(changed, f"{section.place}{key}.")
        bits = overrides.get("bits")
        if isinstance(bits, int) and bits >= UNQUANTIZED_BITS:
            return None
        return make(own)

    patterns: list[tuple[Callable[[str], re.Match[str] | None], T | None]] = []
    for text, overrides in dynamic.items():
        key = f"dynamic.{text[:80]}"
        expression = compile_pattern(text.removeprefix("+:").removeprefix("-:"), key)
        patterns.append((expression.match, None if text.startswith("-:") else made(key, overrides)))
    exact = {}
    for text, overrides in extra.items():
        key = f"extra_config.{text[:80]}"
        exact[text] = made(key, overrides)
        if not _is_name(text):
            patterns.append((compile_pattern(text, key).search, exact[text]))
    if len(patterns) > MAX_PATTERNS:
        raise ValueError(f"{len(patterns)} patterns for layers, the limit is {MAX_PATTERNS}")
    return LayerRules(make(section), exact, tuple(patterns))


def _is_name(text: str) -> bool:
    """Whether it can only be meant as a layer's name: a dot is the one character that means more."""
    return re.fullmatch(r"[\w.\-]+", text) is not None
