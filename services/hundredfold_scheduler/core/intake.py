"""Takes or refuses submissions: what can never run, what is not there yet, what would overfill the queue."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from hundredfold_scheduler.core.failures import Code, Failure, Refused
from hundredfold_scheduler.core.limits import WorkerLimits, beams_apart
from hundredfold_scheduler.core.request import Submission
from hundredfold_scheduler.core.state import State

MAX_TENANT_CHARS = 512
"""Its name is kept as long as it may owe turns."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Bounds of the waiting queue. Sequences that have been worked on are let in beyond them: they were
    accepted.
    """

    max_requests: int
    """Requests that may wait, beside those that a free seat awaits."""
    max_tokens: int
    """Prompt tokens that may wait; a single prompt may be longer."""


class Intake:
    """Says no with a precise status, or nothing."""

    def __init__(self, state: State, limits: QueueLimits) -> None:
        self._state = state
        self._limits = limits
        self.draining = False
        """Set for good when the service is about to stop."""

    def check(self, submission: Submission, now: float) -> None:
        """Raises ``Refused``."""
        state = self._state
        if self.draining:
            raise Refused("draining", Failure(Code.UNAVAILABLE, "the scheduler is shutting down"))
        if submission.unsupported:
            message = f"{submission.unsupported} is not supported by this release"
            raise Refused("unsupported", Failure(Code.UNIMPLEMENTED, message, submission.unsupported))
        if submission.request_id in state.requests:
            message = f"request_id {submission.request_id!r:.200} belongs to a running request"
            raise Refused("duplicate", Failure(Code.ALREADY_EXISTS, message, "request_id"))
        if len(submission.tenant) > MAX_TENANT_CHARS:
            message = f"tenant has {len(submission.tenant)} characters, the limit is {MAX_TENANT_CHARS}"
            raise Refused("invalid", Failure(Code.INVALID_ARGUMENT, message, "tenant"))
        if not submission.prompt:
            raise Refused("invalid", Failure(Code.INVALID_ARGUMENT, "the prompt has no tokens", "prompt"))
        if len(submission.finished) >= submission.n:
            message = "the request has finished already; there is nothing to resume"
            raise Refused("invalid", Failure(Code.INVALID_ARGUMENT, message, "resume"))
        if submission.deadline_s is not None and submission.deadline_s <= 0:
            raise Refused("expired", expired())
        beams = submission.beams.width if submission.beams is not None else 1
        limits = state.known.widest(len(submission.prompt), beams)
        if limits is not None:
            longest = max((len(prior) for prior in submission.priors.values()), default=0)
            beams_at_end = beams_apart(beams, submission.max_tokens)
            misfit = never_fits(submission.prompt, longest, limits, beams, beams_at_end)
            if misfit is not None:
                raise Refused("invalid", misfit)
        if not any(submission.priors.values()) and not submission.accepted:
            self._check_queue(submission, now)

    def _check_queue(self, submission: Submission, now: float) -> None:
        waiting, limits = self._state.waiting, self._limits
        fresh, more = waiting.num_fresh + self._state.num_held, submission.num_seats
        seats = self._state.known.num_seats
        if seats and more > limits.max_requests + seats:
            message = (
                f"n asks for {more} sequences, max_queued_requests is {limits.max_requests} and all workers "
                f"together have {seats} seats"
            )
            raise Refused("invalid", Failure(Code.INVALID_ARGUMENT, message, "sampling.n"))
        if fresh + more > limits.max_requests + self._state.free_seats:
            asked = f", and this one asks for {more} sequences" if more > 1 else ""
            raise Refused(
                "queue_requests",
                Failure(
                    Code.RESOURCE_EXHAUSTED,
                    f"{fresh} requests wait, max_queued_requests is {limits.max_requests}{asked}",
                    retry_after_ms=self._retry_after_ms(now),
                ),
            )
        length = len(submission.prompt)
        if waiting.num_fresh and waiting.fresh_tokens + length > limits.max_tokens:
            raise Refused(
                "queue_tokens",
                Failure(
                    Code.RESOURCE_EXHAUSTED,
                    f"{waiting.fresh_tokens} prompt tokens wait, with {length} more they would pass "
                    f"max_queued_tokens = {limits.max_tokens}",
                    retry_after_ms=self._retry_after_ms(now),
                ),
            )

    def _retry_after_ms(self, now: float) -> int:
        return self._state.finish_rate.retry_after_ms(len(self._state.waiting), now)


def expired() -> Failure:
    """The end of a request whose time is up."""
    return Failure(Code.DEADLINE_EXCEEDED, "the deadline passed before the answer was complete")


def never_fits(
    prompt: array[int], num_output: int, limits: WorkerLimits, beams: int, beams_at_end: int
) -> Failure | None:
    """Why a worker with these limits can never serve a prompt with so many ids answered, or ``None``. Each
    beam takes a seat; so many are computed apart in the end.
    """
    length = len(prompt)
    if length > limits.max_cache_tokens:
        message = f"the prompt has {length} tokens, the cache holds at most {limits.max_cache_tokens}"
        return Failure(Code.INVALID_ARGUMENT, message, "prompt")
    if length >= limits.max_model_len:
        message = (
            f"the prompt has {length} tokens, max_model_len is {limits.max_model_len}, the answer included"
        )
        return Failure(Code.INVALID_ARGUMENT, message, "prompt")
    highest = max(prompt)
    if highest >= limits.vocab_size:
        message = f"token id {highest} is not below the size of the vocabulary, {limits.vocab_size}"
        return Failure(Code.INVALID_ARGUMENT, message, "prompt")
    if beams > limits.max_num_seqs:
        message = f"beam_width is {beams}, max_num_seqs is {limits.max_num_seqs}"
        return Failure(Code.INVALID_ARGUMENT, message, "sampling.beam_width")
    if limits.room_for_output(length, beams_at_end) < 1:
        message = (
            f"{beams} beams after a prompt of {length} tokens do not fit the cache: it has "
            f"{limits.num_blocks} blocks of {limits.block_size} tokens"
        )
        return Failure(Code.INVALID_ARGUMENT, message, "sampling.beam_width")
    if num_output > limits.room_for_output(length):
        message = (
            f"{length} prompt and {num_output} answered tokens do not fit any worker that is there now: "
            f"{limits.room_for_output(length)} can be answered"
        )
        return Failure(Code.RESOURCE_EXHAUSTED, message)
    return None
