"""One request from submission to last event: takes what the scheduler says, gives what its client reads."""

from __future__ import annotations

import time
from collections.abc import Sequence

import grpc

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2
from hundredfold.rpc import RequestError
from hundredfold.telemetry import RequestSpan, get_logger
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.output.choice import ChoiceText, TextRules
from hundredfold_tokenizer.output.outbox import Outbox, PromptScores
from hundredfold_tokenizer.output.scores import MISSING, TokenScore, unpack
from hundredfold_tokenizer.validation.errors import invalid
from hundredfold_tokenizer.validation.request import GenerationRequest

log = get_logger(__name__)

_REASONS = {
    sequence_pb2.END_REASON_STOP: pb.FINISH_REASON_STOP,
    sequence_pb2.END_REASON_LENGTH: pb.FINISH_REASON_LENGTH,
}
_CODES = {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}


class RunningRequest:
    """A request with one choice. Belongs to the event loop.

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
        self.finish_sent = False
        """Whether the scheduler was told that a stop string ended the text."""
        self.ended = False
        self.error: RequestError | None = None
        self.finished: pb.Finished | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self._choice = ChoiceText(rules)
        self._output_scores: list[TokenScore] = []
        self._prompt_scores: list[TokenScore] | None = None
        if request.sampling.prompt_logprobs is not None and not request.received.token_ids:
            self._prompt_scores = []
        self._held_by_client = 0
        self._resume(rules)

    @property
    def matched(self) -> bool:
        """Whether a stop string has ended the text; only the account is still to come."""
        return self._choice.stopped_by is not None

    @property
    def num_tokens(self) -> int:
        """Output tokens that count so far."""
        return len(self._choice.ids)

    def submission(self, now: float) -> scheduler_pb2.Submit:
        """The request as the scheduler takes it, with what has been received already."""
        envelope, sampling = self.request.envelope, self.request.sampling
        params = self.request.params
        if params.HasField("prompt_logprobs") and self._prompt_scores is None:
            params = sequence_pb2.SequenceParams()
            params.CopyFrom(self.request.params)
            params.ClearField("prompt_logprobs")
        prior = [scheduler_pb2.PriorOutput(index=0, token_ids=self._choice.ids)] if self._choice.ids else []
        return scheduler_pb2.Submit(
            stream_id=self.stream_id,
            request_id=envelope.request_id,
            prompt_token_ids=self.request.prompt,
            params=params,
            n=1,
            prior=prior,
            priority=envelope.priority,
            tenant=envelope.tenant,
            cache_salt=envelope.cache_salt,
            deadline_ms=0 if self.deadline is None else max(1, int((self.deadline - now) * 1000)),
            age_us=max(0, int((now - self.arrived) * 1e6)),
            traceparent=self.span.traceparent,
            skip_prefix_cache=sampling.prompt_logprobs is not None,
        )

    def take_tokens(self, index: int, offset: int, token_ids: Sequence[int], now: float) -> None:
        """New ids, the first at output position ``offset``; those that are here already are dropped.

        Runs once per stream and step, so it does nothing that it need not.

        Raises:
            ValueError: Ids between those here and these are missing.
        """
        if self.ended or self.matched:
            return
        have = len(self._choice.ids)
        if index != 0 or offset > have:
            raise ValueError(f"ids of choice {index} from {offset} on, but {have} ids of choice 0 are here")
        fresh = token_ids[have - offset : self.request.max_tokens - offset]
        if not fresh:
            return
        if self.first_token_at is None:
            self.first_token_at = now
            self._give_prompt_scores(complete=True)
        self.last_token_at = now
        text = self._choice.feed(fresh)
        if self._held_by_client:
            text = self._fresh(text)
        kept = fresh[: len(self._choice.ids) - have]
        scores = () if self.request.sampling.logprobs is None else self._scores_of(len(kept))
        self.outbox.put_tokens(0, text, kept, scores)

    def take_scores(self, index: int, scores: sequence_pb2.Scores) -> None:
        """Scores of consecutive tokens, prompt tokens included."""
        if self.ended or self.matched or index != 0:
            return
        prompt = len(self.request.prompt)
        for position, score in enumerate(unpack(scores), scores.position):
            if position >= prompt:
                if self.request.sampling.logprobs is not None:
                    known = len(self._choice.ids) + len(self._output_scores)
                    _append(self._output_scores, score, position - prompt - known)
            elif self._prompt_scores is not None and position > 0:
                _append(self._prompt_scores, score, position - 1 - len(self._prompt_scores))
        self._give_prompt_scores(complete=False)

    def take_finish(self, done: scheduler_pb2.FinishedChoice) -> None:
        """The choice ended in the scheduler."""
        if self.ended:
            return
        reason = _REASONS.get(done.reason)
        if self.matched:
            self._finish_matched(done.account)
        elif done.index != 0 or reason is None:
            raise ValueError(f"choice {done.index} ended for reason {done.reason}")
        else:
            stop_id = done.stop_token_id if done.HasField("stop_token_id") else None
            self._finish(reason, stop_id, done.account)

    def take_failure(self, failure: sequence_pb2.Failure) -> None:
        """The request failed in the scheduler."""
        if self.matched and not self.ended:
            self._finish_matched(None)  # its text is complete, whatever became of the rest
            return
        retry = failure.retry_after_ms / 1000 if failure.retry_after_ms else None
        code = _CODES.get(failure.code, grpc.StatusCode.INTERNAL)
        self.fail(RequestError(code, failure.message, field=failure.field or None, retry_after_s=retry))

    def settle(self) -> bool:
        """End the request here if nothing of it is left to compute; whether it has ended."""
        if self.ended:
            return True
        ids, request = self._choice.ids, self.request
        last = ids[-1] if ids else None
        if self.matched:
            self._finish_matched(None)
        elif (
            last is not None
            and last in request.params.stop_token_ids
            and len(ids) > request.params.min_tokens
        ):
            self._finish(pb.FINISH_REASON_STOP, last, None)
        elif ids and len(ids) >= request.max_tokens:
            self._finish(pb.FINISH_REASON_LENGTH, None, None)
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

    def _resume(self, rules: TextRules) -> None:
        """Bring the text to where the client is: it holds these ids and so many characters of their text."""
        received = self.request.received
        if not received.token_ids and not received.num_chars:
            return
        text = self._choice.feed(received.token_ids)
        if received.num_chars > len(text):
            whole = ChoiceText(rules)
            made = len(whole.feed(received.token_ids)) + len(whole.flush())
            if received.num_chars > made:
                raise invalid(
                    "resume.choices[0].num_chars", received.num_chars, f"is more than its ids make, {made}"
                )
        self._held_by_client = received.num_chars
        if fresh := self._fresh(text):
            self.outbox.put_tokens(0, fresh, (), ())

    def _fresh(self, text: str) -> str:
        """What of a text a resumed client does not hold yet."""
        if not self._held_by_client:
            return text
        held = min(self._held_by_client, len(text))
        self._held_by_client -= held
        return text[held:]

    def _scores_of(self, count: int) -> list[TokenScore]:
        scores, self._output_scores = self._output_scores[:count], self._output_scores[count:]
        if len(scores) < count:
            log.warning(
                "scores are missing", request_id=self.request.envelope.request_id, missing=count - len(scores)
            )
            scores += [MISSING] * (count - len(scores))
        return scores

    def _give_prompt_scores(self, *, complete: bool) -> None:
        scores, wanted = self._prompt_scores, len(self.request.prompt) - 1
        if scores is None or (len(scores) < wanted and not complete):
            return
        scores += [MISSING] * (wanted - len(scores))
        self._prompt_scores = None
        self.outbox.put(PromptScores(scores))

    def _finish_matched(self, account: scheduler_pb2.ChoiceAccount | None) -> None:
        self._finish(pb.FINISH_REASON_STOP, None, account)

    def _finish(
        self,
        reason: pb.FinishReason.ValueType,
        stop_token_id: int | None,
        account: scheduler_pb2.ChoiceAccount | None,
    ) -> None:
        self._give_prompt_scores(complete=True)
        rest = self._fresh(self._choice.flush())
        if rest:
            self.outbox.put_tokens(0, rest, (), ())
        self.finished = pb.Finished(
            index=0,
            reason=reason,
            usage=pb.Usage(
                prompt_tokens=len(self.request.prompt),
                completion_tokens=len(self._choice.ids),
                cached_tokens=account.cached_tokens if account is not None else 0,
            ),
            timings=self._timings(account),
        )
        if self._choice.stopped_by is not None:
            self.finished.stop_string = self._choice.stopped_by
        elif stop_token_id is not None:
            self.finished.stop_token_id = stop_token_id
        self.ended = True
        self.outbox.put(self.finished)
        self.outbox.end()

    def _timings(self, account: scheduler_pb2.ChoiceAccount | None) -> pb.Timings:
        if account is None:  # what the door saw itself
            first = self.first_token_at if self.first_token_at is not None else time.monotonic()
            last = self.last_token_at if self.last_token_at is not None else first
            account = scheduler_pb2.ChoiceAccount(
                prefill_us=int((first - self.arrived) * 1e6), decode_us=int((last - first) * 1e6)
            )
        timings = pb.Timings(preemptions=account.preemptions)
        timings.queue.FromMicroseconds(account.queue_us)
        timings.prefill.FromMicroseconds(account.prefill_us)
        timings.decode.FromMicroseconds(account.decode_us)
        return timings


def _append(scores: list[TokenScore], score: TokenScore, ahead: int) -> None:
    """Add the next score; one that is here already is dropped, and none may be skipped."""
    if ahead > 0:
        raise ValueError(f"a score {ahead} positions ahead")
    if ahead == 0:
        scores.append(score)
