"""One running request and its choices: takes what the scheduler says, gives what its client reads."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2
from hundredfold.rpc import RequestError
from hundredfold.telemetry import RequestSpan
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.output.choice import TextRules
from hundredfold_tokenizer.output.outbox import Outbox, PromptScores
from hundredfold_tokenizer.output.scores import MISSING, TokenScore, unpack
from hundredfold_tokenizer.requests.choice import RunningChoice
from hundredfold_tokenizer.validation.request import GenerationRequest

_CODES = {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}


class RunningRequest:
    """A request. Belongs to the event loop.

    Args:
        stream_id: Its number on the attach stream.
        request: What was asked.
        rules: How its ids become text.
        outbox: Where its output goes.
        arrived: When it arrived, by the monotonic clock.
        deadline: When it ends, by the monotonic clock; None for never.
        span: Its trace.

    Raises:
        RequestError: INVALID_ARGUMENT when it resumes with more text than its ids have.
    """

    def __init__(
        self,
        stream_id: int,
        request: GenerationRequest,
        rules: TextRules,
        outbox: Outbox,
        *,
        arrived: float,
        deadline: float | None,
        span: RequestSpan,
    ) -> None:
        self.stream_id = stream_id
        self.request = request
        self.outbox = outbox
        self.arrived = arrived
        self.deadline = deadline
        self.span = span
        self.submitted = False
        """Whether the scheduler has it, on the stream there is now."""
        self.accepted = False
        """Whether a scheduler had it on an earlier stream."""
        self.ended = False
        self.error: RequestError | None = None
        self.choices = [
            RunningChoice(index, request, rules, outbox, arrived) for index in range(request.sampling.n)
        ]
        self._prompt_scores: list[TokenScore] | None = None
        held = any(received.token_ids for received in request.received.values())
        if request.sampling.prompt_logprobs is not None and not held:
            self._prompt_scores = []

    @property
    def num_tokens(self) -> int:
        """Output tokens that count so far, all choices together."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def finished(self) -> list[pb.Finished]:
        """The ends of its choices so far, by index."""
        return [choice.finished for choice in self.choices if choice.finished is not None]

    @property
    def complete(self) -> bool:
        """Whether every choice has its end."""
        return all(choice.finished is not None for choice in self.choices)

    @property
    def usage(self) -> pb.Usage:
        """What it took until now: the prompt once, as its first choice met it, and the tokens of all."""
        first = self.choices[0].finished
        return pb.Usage(
            prompt_tokens=len(self.request.prompt),
            completion_tokens=self.num_tokens,
            cached_tokens=first.usage.cached_tokens if first is not None else 0,
        )

    @property
    def first_token_at(self) -> float | None:
        """When its first token arrived, by the monotonic clock."""
        times = [choice.first_token_at for choice in self.choices if choice.first_token_at is not None]
        return min(times, default=None)

    def submission(self, now: float) -> scheduler_pb2.Submit:
        """The request as the scheduler takes it, with what has been received already."""
        envelope, sampling = self.request.envelope, self.request.sampling
        params = self.request.params
        if params.HasField("prompt_logprobs") and self._prompt_scores is None:
            params = sequence_pb2.SequenceParams()
            params.CopyFrom(self.request.params)
            params.ClearField("prompt_logprobs")
        submit = scheduler_pb2.Submit(
            stream_id=self.stream_id,
            request_id=envelope.request_id,
            prompt_token_ids=self.request.prompt,
            params=params,
            n=sampling.n,
            priority=envelope.priority,
            tenant=envelope.tenant,
            cache_salt=envelope.cache_salt,
            deadline_ms=0 if self.deadline is None else max(1, int((self.deadline - now) * 1000)),
            age_us=max(0, int((now - self.arrived) * 1e6)),
            traceparent=self.span.traceparent,
            skip_prefix_cache=sampling.prompt_logprobs is not None,
            accepted=self.accepted,
        )
        if (beams := sampling.beam_group) is not None:
            # A search has no beginnings: it is made again, and what is here already is dropped.
            submit.beam_width = beams.width
            submit.length_penalty = beams.length_penalty
            submit.early_stopping = beams.early_stopping
        else:
            submit.prior.extend(prior for choice in self.choices if (prior := choice.prior()) is not None)
        return submit

    def take_tokens(
        self, index: int, offset: int, token_ids: Sequence[int], now: float
    ) -> RunningChoice | None:
        """New ids of a choice; returns the choice if a stop string among them has ended its text.

        Raises:
            ValueError: There is no such choice, or ids before these are missing.
        """
        if self.ended:
            return None
        choice = self._choice(index) if index else self.choices[0]
        if choice.finished is not None or choice.matched:
            return None
        if self._prompt_scores is not None and token_ids:
            self._give_prompt_scores(complete=True)
        return choice if choice.take_tokens(offset, token_ids, now) else None

    def take_scores(self, index: int, scores: sequence_pb2.Scores) -> None:
        """Scores of consecutive tokens, prompt tokens included.

        Raises:
            ValueError: There is no such choice, or scores before these are missing.
        """
        choice = self._choice(index)
        if self.ended or choice.finished is not None or choice.matched:
            return
        prompt = len(self.request.prompt)
        for position, score in enumerate(unpack(scores), scores.position):
            if position >= prompt:
                if self.request.sampling.logprobs is not None:
                    choice.take_score(position - prompt, score)
            elif self._prompt_scores is not None and position > 0:
                _append(self._prompt_scores, score, position - 1 - len(self._prompt_scores))
        self._give_prompt_scores(complete=False)

    def take_finish(self, done: scheduler_pb2.FinishedChoice) -> None:
        """A choice ended in the scheduler.

        Raises:
            ValueError: There is no such choice, or it ended for no known reason.
        """
        choice = self._choice(done.index)
        if self.ended or choice.finished is not None:
            return
        self._give_prompt_scores(complete=True)
        choice.take_finish(done)
        self._end_if_complete()

    def take_failure(self, failure: sequence_pb2.Failure) -> None:
        """The request failed in the scheduler."""
        if not self.ended and all(choice.finished is not None or choice.matched for choice in self.choices):
            self.settle()  # the texts are complete, whatever became of the rest
            return
        if failure.code == grpc.StatusCode.UNAVAILABLE.value[0]:
            self.submitted = False  # this scheduler is about to stop; its successor gets the request
            return
        retry = failure.retry_after_ms / 1000 if failure.retry_after_ms else None
        code = _CODES.get(failure.code, grpc.StatusCode.INTERNAL)
        self.fail(RequestError(code, failure.message, field=failure.field or None, retry_after_s=retry))

    def settle(self) -> bool:
        """End here what needs no scheduler any more; whether the request has ended."""
        if not self.ended:
            for choice in self.choices:
                choice.settle()
            self._end_if_complete()
        return self.ended

    def settle_choice(self, choice: RunningChoice) -> bool:
        """End one choice whose text is complete; whether the request has ended."""
        if not self.ended:
            choice.settle()
            self._end_if_complete()
        return self.ended

    def fail(self, error: RequestError) -> None:
        """End the request with a status; what its client has not read is dropped."""
        if not self.ended:
            self.cut_off(error)

    def cut_off(self, error: RequestError) -> None:
        """End the request with a status even if it has finished: its client has not read all and will not."""
        self.ended = True
        self.error = error
        self.outbox.end(error)

    def _choice(self, index: int) -> RunningChoice:
        if index >= len(self.choices):
            raise ValueError(f"choice {index} of {len(self.choices)}")
        return self.choices[index]

    def _end_if_complete(self) -> None:
        if self.complete:
            self.ended = True
            self.outbox.end()

    def _give_prompt_scores(self, *, complete: bool) -> None:
        scores, wanted = self._prompt_scores, len(self.request.prompt) - 1
        if scores is None or (len(scores) < wanted and not complete):
            return
        scores += [MISSING] * (wanted - len(scores))
        self._prompt_scores = None
        self.outbox.put(PromptScores(scores))


def _append(scores: list[TokenScore], score: TokenScore, ahead: int) -> None:
    """Add the next score; one that is here already is dropped, and none may be skipped."""
    if ahead > 0:
        raise ValueError(f"a score {ahead} positions ahead")
    if ahead == 0:
        scores.append(score)
