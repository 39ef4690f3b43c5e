"""The rules of a mixed checkpoint, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

MAX_RULES = 4096
MAX_PATTERN = 200


@dataclass(frozen=True, slots=True)
class Rule:
    """Which layers, and the section of the format that stores them; ``None`` for plain floats."""

    layers: str
    config: Mapping[str, Any] | None

    def matches(self, name: str) -> bool:
        """Whether a layer of this name falls under the rule: ``*`` stands for anything, dots included."""
        return fnmatchcase(name, self.layers)


def parse_rules(config: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The section's rules in their order. Raises ``ValueError`` naming rule and key."""
    rules = config.get("rules")
    if not isinstance(rules, list) or not 1 <= len(rules) <= MAX_RULES:
        raise ValueError(f"'rules' is {str(rules)[:80]}, expected is a list of 1 to {MAX_RULES} rules")
    return tuple(_rule(number, rule) for number, rule in enumerate(rules, 1))


def _rule(number: int, rule: object) -> Rule:
    if not isinstance(rule, Mapping) or rule.keys() != {"layers", "config"}:
        raise ValueError(f"rule {number} is {str(rule)[:80]}, expected is an object of 'layers' and 'config'")
    layers, config = rule["layers"], rule["config"]
    if not isinstance(layers, str) or not 1 <= len(layers) <= MAX_PATTERN:
        raise ValueError(
            f"rule {number}: 'layers' is {str(layers)[:80]!r}, expected is a pattern of 1 to {MAX_PATTERN} "
            "characters, such as '*.self_attn.*'"
        )
    if not isinstance(config, Mapping | None):
        raise ValueError(
            f"rule {number}: 'config' is {str(config)[:80]!r}, expected is a quantization_config or null"
        )
    return Rule(layers, config)
