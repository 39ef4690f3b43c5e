"""Which worker a sequence goes to, of those that it fits now."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from hundredfold_scheduler.core.request import Sequence
from hundredfold_scheduler.core.worker import Worker

EVEN_SEATS = 4
EVEN_SHARE = 1.5
"""A worker may run this many times as many as the emptiest one, and so many more: beyond that no cached
prefix makes up for its company.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker with a free seat and the memory for a sequence."""

    worker: Worker
    hits: list[int]
    """Its blocks that hold the sequence's leading tokens."""
    missing: int
    """Blocks that the known tokens need beside these."""
    given_sequences: int = 0
    """Sequences that the look at the queue has left to that worker before this one."""
    given_tokens: int = 0
    """Tokens to be computed that it has seated there or left to it."""

    @property
    def num_cached(self) -> int:
        """Tokens that need not be computed there."""
        return len(self.hits) * self.worker.cache.block_size


class Given:
    """What one look at the queue has given to whom so far. Without it all that a look leaves to others would
    seem to go to a worker that stays as empty as it is.
    """

    def __init__(self) -> None:
        self._given: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """A new look."""
        self._given.clear()

    def seated(self, place: Place, num_tokens: int) -> None:
        """A sequence was seated at the place; so many of its tokens are to be computed."""
        sequences, tokens = self.to(place.worker)
        self._given[place.worker.name] = sequences, tokens + num_tokens

    def left(self, place: Place, num_tokens: int) -> None:
        """A sequence was left to the place's worker."""
        sequences, tokens = self.to(place.worker)
        self._given[place.worker.name] = sequences + 1, tokens + num_tokens

    def to(self, worker: Worker) -> tuple[int, int]:
        """Sequences left to a worker, and the tokens given to it in all."""
        return self._given.get(worker.name, (0, 0))


class Router(Protocol):
    """Chooses among places. Its choice has to depend on nothing but the arguments: it is asked anew whenever
    one of the workers is planned for.
    """

    def choose(self, sequence: Sequence, places: Seq[Place]) -> Place:
        """One of the places, of which there are at least two, each on another worker."""


class LeastWork:
    """Where least has to be computed before the sequence's next token: what the prefix cache saves there
    against what waits there already, both in full steps, and the company it would have. Workers much fuller
    than the emptiest one are left out, so that a popular prefix spreads instead of piling up where it began.
    """

    def choose(self, sequence: Sequence, places: Seq[Place]) -> Place:
        """See ``Router``."""
        emptiest = min(map(_company, places))
        even = [place for place in places if _is_even(place, emptiest)]
        return min(even, key=lambda place: _work(sequence, place))


def fill(worker: Worker, more: int = 0) -> float:
    """Share of a worker's seats that are taken, or would be with some more."""
    return (len(worker.running) + more) / worker.slots.count


def _company(place: Place) -> tuple[float, float]:
    """What runs there, and between equals what the look has left there."""
    return fill(place.worker), fill(place.worker, place.given_sequences)


def _is_even(place: Place, emptiest: tuple[float, float]) -> bool:
    """What was left to the emptiest one does not count until it runs there: it may be refused a seat."""
    worker = place.worker
    most = EVEN_SHARE * emptiest[0] * worker.slots.count + EVEN_SEATS
    return _company(place) == emptiest or len(worker.running) + place.given_sequences <= most


def _work(sequence: Sequence, place: Place) -> float:
    worker = place.worker
    ahead = place.given_tokens + (worker.backlog if worker.running else 0)
    tokens = ahead + sequence.total - place.num_cached
    return tokens / worker.limits.max_num_batched_tokens + fill(worker, place.given_sequences)
