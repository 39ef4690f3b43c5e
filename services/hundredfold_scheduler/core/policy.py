"""Who goes first and who gives way: the two choices that a deployment may want to make otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from hundredfold_scheduler.core.request import Sequence


class AdmissionOrder(Protocol):
    """The order of the waiting queue."""

    def key(self, sequence: Sequence) -> Any:
        """A sort key, smallest first; equal keys leave in the order they came. Taken when the sequence is
        queued.
        """


class VictimChoice(Protocol):
    """Who gives its memory back when a running sequence cannot grow."""

    def choose(self, running: Iterable[Sequence]) -> Sequence:
        """One of the running sequences, of which there is at least one.

        The one that wants to grow is among them; when it is chosen itself, it waits in place.
        """


class StrictPriority:
    """Higher priority first. Inside a class those that have been worked on before, so that nobody loses a
    place by being preempted, then the earliest arrival. A class waits as long as a higher one has work.
    """

    def key(self, sequence: Sequence) -> tuple[int, bool, float]:
        """See ``AdmissionOrder``."""
        request = sequence.request
        return -request.submission.priority, not sequence.started, request.arrival


class LatestOfLowestPriority:
    """The latest arrival of the lowest priority: it has the least claim and mostly the least to lose."""

    def choose(self, running: Iterable[Sequence]) -> Sequence:
        """See ``VictimChoice``."""
        return max(running, key=_claim)


def _claim(sequence: Sequence) -> tuple[int, float, int]:
    request = sequence.request
    return -request.submission.priority, request.arrival, sequence.number
