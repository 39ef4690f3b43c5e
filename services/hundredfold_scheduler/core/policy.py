"""Who goes first and who gives way: the choices that a deployment may want to make otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from hundredfold_scheduler.core.request import Sequence

MAX_PRIORITY = 100
"""Priorities beyond it, either way, count as it: the number of classes is bounded."""
NEAR_END = 16
"""Output tokens short of its limit at which a sequence soon gives its memory back by itself."""


class AdmissionOrder(Protocol):
    """What the waiting queue orders by. All three have to stay the same for a sequence that waits."""

    @property
    def ageing_s(self) -> float:
        """Seconds of waiting that raise by a class; 0 for never."""

    def level(self, sequence: Sequence) -> int:
        """Its class when it comes; a higher one goes first."""

    def owner(self, sequence: Sequence) -> str:
        """Whose turn it takes: inside a class the owner that was served least goes next."""


class VictimChoice(Protocol):
    """Who gives its memory back when a running sequence cannot grow."""

    def choose(self, running: Iterable[Sequence], wanting: Sequence) -> Sequence:
        """One of the running sequences. ``wanting``, which cannot grow, is among them; when it is chosen
        itself, it waits in place.

        One of them has to be spared whatever happens, and always the same one while it runs: so some sequence
        always goes on, and no two take each other's memory by turns.
        """


@dataclass(frozen=True, slots=True)
class StrictPriority:
    """A class for each priority, shared by tenants. ``ageing_s`` keeps a class from waiting for ever."""

    ageing_s: float = 60.0

    def level(self, sequence: Sequence) -> int:
        """See ``AdmissionOrder``."""
        return max(-MAX_PRIORITY, min(MAX_PRIORITY, sequence.request.submission.priority))

    def owner(self, sequence: Sequence) -> str:
        """See ``AdmissionOrder``."""
        return sequence.request.submission.tenant


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed:
    """Classes, and nobody's share: a class is one line."""

    ageing_s: float = 60.0

    def level(self, sequence: Sequence) -> int:
        """See ``AdmissionOrder``."""
        return StrictPriority(self.ageing_s).level(sequence)

    def owner(self, sequence: Sequence) -> str:
        """See ``AdmissionOrder``."""
        return ""


class LatestOfLowestPriority:
    """The latest arrival of the lowest class: it has the least claim and mostly the least to lose."""

    def choose(self, running: Iterable[Sequence], wanting: Sequence) -> Sequence:
        """See ``VictimChoice``."""
        return max(running, key=_claim)


class CheapestOfLowestPriority:
    """Of those with less claim than the one that cannot grow, the lowest class, in it the one that is
    cheapest to compute again. One that is about to end is spared when another will do.

    Claims never change while a sequence lives, and nobody gives way to a lesser one: the strongest of those
    that run always goes on.
    """

    def choose(self, running: Iterable[Sequence], wanting: Sequence) -> Sequence:
        """See ``VictimChoice``."""
        claim = _claim(wanting)
        lesser = [sequence for sequence in running if _claim(sequence) > claim]
        return min(lesser, key=_price, default=wanting)


def _claim(sequence: Sequence) -> tuple[int, float, int]:
    """Smaller is stronger."""
    return -sequence.level, sequence.request.arrival, sequence.number


def _price(sequence: Sequence) -> tuple[int, bool, int, int]:
    # The first of beams stands for all of them, though it may rest itself.
    live = sequence if sequence.beams is None else sequence.beams.live[0]
    ends_soon = live.end_total - live.total <= NEAR_END
    return sequence.level, ends_soon, sequence.tokens_to_lose, -sequence.number
