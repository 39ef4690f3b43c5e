"""What a check found, and the check that every plugin takes first: does it meet its group's contract."""

from __future__ import annotations

from dataclasses import dataclass, field

from hundredfold.plugin.conformance import faults


class NonConformance(AssertionError):
    """A plugin does not do what its contract says; the message names plugin, case and difference."""


@dataclass(slots=True)
class Report:
    """Which cases a plugin took and which it refused; whether that is enough is for its own tests to say."""

    accepted: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Case to reasons."""


def check_plugin(group: str, plugin: object) -> None:
    """Check as at registration. Raises ``NonConformance`` with all that is missing."""
    name = getattr(plugin, "name", type(plugin).__name__)
    missing = faults(group, str(name), plugin)
    if missing:
        raise NonConformance(f"{name} does not meet {group}: it " + "; it ".join(missing))


def checked_reasons(plugin: object, case: str, reasons: object) -> list[str]:
    """Reasons as the contract wants them: a list of texts that say something."""
    ok = isinstance(reasons, list) and all(isinstance(r, str) and r.strip() for r in reasons)
    if not ok:
        name = getattr(plugin, "name", plugin)
        raise NonConformance(f"{name}, {case}: refuses() returned {reasons!r}, wanted is a list of texts")
    return list(reasons)  # type: ignore[call-overload, no-any-return]


def require(condition: bool, message: str) -> None:
    """Raise ``NonConformance`` with ``message`` unless ``condition``."""
    if not condition:
        raise NonConformance(message)
