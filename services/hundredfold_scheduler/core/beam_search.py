"""Beam search as transformers does it: which beams go on, which are complete, and when it is over.

Sums are float32 as there, so that equal log probabilities choose equal beams.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from ctypes import c_float
from dataclasses import dataclass

from hundredfold_scheduler.core.step import Candidates, EndReason


@dataclass(frozen=True, slots=True)
class BeamTerms:
    """What was asked for."""

    width: int
    length_penalty: float
    """Exponent of the length by which a sum of log probabilities is divided."""
    early_stopping: bool
    """Whether the first ``width`` complete beams end the search."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam goes on with a token."""

    beam: int
    """Its place among the beams before."""
    token_id: int
    score: float
    """Sum of the log probabilities."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A complete beam."""

    output: array[int]
    score: float
    """The sum of its log probabilities, divided by its length to the power of the penalty."""
    reason: EndReason
    stop_token_id: int | None


class BeamSearch:
    """The state of one search between two steps; which worker computes it does not matter."""

    def __init__(self, terms: BeamTerms, stop_token_ids: frozenset[int]) -> None:
        self.terms = terms
        self.scores = [0.0]
        """Sums of the running beams, best first."""
        self.complete: list[Hypothesis] = []
        """At most ``width``, best first."""
        self.over = False
        self._stops = stop_token_ids

    @property
    def num_candidates(self) -> int:
        """Likeliest ids to ask for after each beam: with all its stop ids among them, ``width`` go on."""
        width = self.terms.width
        return max(2 * width, width + len(self._stops))

    def advance(
        self, outputs: Seq[array[int]], candidates: Seq[Candidates], max_tokens: int
    ) -> list[Continuation]:
        """Choose among the candidates of all running beams; returns those that go on, best first.

        Args:
            outputs: Output ids of each beam, all of one length, best beam first.
            candidates: What may follow each.
            max_tokens: Length at which every beam is complete.
        """
        length = len(outputs[0]) + 1
        at_limit = length >= max_tokens
        ranked = self._rank(candidates)
        going_on: list[Continuation] = []
        for rank, found in enumerate(ranked):
            stops = found.token_id in self._stops
            if not (stops or at_limit):
                if len(going_on) < self.terms.width:
                    going_on.append(found)
            elif rank < self.terms.width:
                self._add(found, outputs[found.beam], length, stops)
        self.scores = [found.score for found in going_on]
        self.over = not going_on or not self._can_improve(length)
        return going_on

    def _rank(self, candidates: Seq[Candidates]) -> list[Continuation]:
        ranked = [
            Continuation(beam, token_id, _float32(score + logprob))
            for beam, (score, found) in enumerate(zip(self.scores, candidates, strict=True))
            for token_id, logprob in zip(found.token_ids, found.logprobs, strict=True)
        ]
        ranked.sort(key=lambda found: -found.score)
        return ranked

    def _add(self, found: Continuation, output: array[int], length: int, stops: bool) -> None:
        hypothesis = Hypothesis(
            output + array("I", [found.token_id]),
            self._normalized(found.score, length),
            EndReason.STOP if stops else EndReason.LENGTH,
            found.token_id if stops else None,
        )
        self.complete.append(hypothesis)
        self.complete.sort(key=lambda complete: -complete.score)
        del self.complete[self.terms.width :]

    def _can_improve(self, length: int) -> bool:
        """Whether the best running beam could still come before the worst complete one, as things stand."""
        if len(self.complete) < self.terms.width:
            return True
        if self.terms.early_stopping:
            return False
        return self._normalized(self.scores[0], length) > self.complete[-1].score

    def _normalized(self, score: float, length: int) -> float:
        return _float32(score / float(length) ** self.terms.length_penalty)


def _float32(value: float) -> float:
    return c_float(value).value
