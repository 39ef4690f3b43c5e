"""What the core tells whoever watches it: logs, spans and metrics are made outside."""

from __future__ import annotations

from hundredfold_scheduler.core.failures import Failure
from hundredfold_scheduler.core.request import Request, Sequence
from hundredfold_scheduler.core.step import EndReason, StepPlan, StepResult


class Observer:
    """Does nothing; a service overrides what it wants to see. Called with the core in a consistent state."""

    def submitted(self, request: Request) -> None:
        """A request was taken."""

    def rejected(self, reason: str, failure: Failure) -> None:
        """A submission was not taken; ``reason`` is one of a few words."""

    def admitted(self, sequence: Sequence, cached_tokens: int) -> None:
        """A sequence got a seat, and so many of its tokens from the prefix cache."""

    def first_token(self, request: Request, now: float) -> None:
        """A request's first token arrived."""

    def preempted(self, sequence: Sequence, lost_tokens: int, free_blocks: int) -> None:
        """A sequence gave its memory back: computed tokens that are lost, blocks that were free before."""

    def planned(self, plan: StepPlan, rows: list[Sequence]) -> None:
        """A plan was made, with these sequences in its rows."""

    def stepped(self, result: StepResult, computed_tokens: int, recomputed_tokens: int) -> None:
        """A result was taken in; of the tokens computed, so many had been computed before."""

    def finished(self, request: Request, reason: EndReason, now: float) -> None:
        """A request ended well."""

    def failed(self, request: Request, failure: Failure, now: float) -> None:
        """A request ended with a status."""

    def dropped(self, request: Request, now: float) -> None:
        """A request's client went away."""

    def replayed(self, sequence: Sequence) -> None:
        """A running sequence goes back to the queue because its worker died."""
