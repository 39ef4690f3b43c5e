"""Capability answers: a list of reasons why not; an empty list means yes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

Reasons = list[str]
"""Why something cannot be done; empty when it can."""

PROMISES_NOTHING = "does not promise a row the same bits in every batch"
"""Why a plugin that says nothing of it is not taken where a row's bits may not depend on the batch."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that was not taken, and why."""

    name: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A candidate that was taken, why, and what was refused on the way."""

    name: str
    value: T
    reason: str
    refused: tuple[Refused, ...] = ()


class NothingFits(LookupError):
    """No candidate can do what is needed; the message lists each with its reasons."""


def choose(
    subject: str, candidates: Iterable[tuple[str, T]], ask: Callable[[T], Reasons], wanted: str | None = None
) -> Choice[T]:
    """Take ``wanted``, or the first candidate that has no reason against it.

    Raises:
        NothingFits: ``wanted`` is unknown or cannot, or no candidate can.
    """
    offered = list(candidates)
    if wanted is not None and wanted not in (name for name, _ in offered):
        names = ", ".join(sorted(name for name, _ in offered)) or "none"
        raise NothingFits(f"{subject} '{wanted}' is not installed; installed: {names}")
    refused: list[Refused] = []
    for name, value in offered:
        if wanted is not None and name != wanted:
            continue
        reasons = ask(value)
        if not reasons:
            why = "asked for" if wanted is not None else "first that fits"
            return Choice(name, value, why, tuple(refused))
        refused.append(Refused(name, tuple(reasons)))
    listed = "; ".join(f"{r.name}: {', '.join(r.reasons)}" for r in refused) or "none is installed"
    raise NothingFits(f"no {subject} fits ({listed})")
