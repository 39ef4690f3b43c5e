"""One choice of a running request: takes what the scheduler says of it, gives pieces and its one end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hundredfold.internal.v1 import scheduler_pb2, sequence_pb2
from hundredfold.telemetry import get_logger
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.output.choice import ChoiceText, TextRules
from hundredfold_tokenizer.output.outbox import Outbox
from hundredfold_tokenizer.output.scores import MISSING, TokenScore
from hundredfold_tokenizer.validation.errors import invalid
from hundredfold_tokenizer.validation.request import GenerationRequest, Received

log = get_logger(__name__)

_REASONS = {
    sequence_pb2.END_REASON_STOP: pb.FINISH_REASON_STOP,
    sequence_pb2.END_REASON_LENGTH: pb.FINISH_REASON_LENGTH,
}
_NOTHING = Received()


class RunningChoice:
    """Belongs to the event loop.

    Args:
        index: Its number.
        request: What was asked.
        rules: How its ids become text.
        outbox: Where its output goes, shared with the other choices.
        arrived: When the request arrived, by the monotonic clock.

    Raises:
        RequestError: INVALID_ARGUMENT when it resumes with more text than its ids have.
    """

    __slots__ = (
        "_arrived", "_has_scores", "_held_by_client", "_max_tokens", "_outbox", "_request", "_scores",
        "_text", "finish_sent", "finished", "first_token_at", "index", "last_token_at",
    )  # fmt: skip

    def __init__(
        self, index: int, request: GenerationRequest, rules: TextRules, outbox: Outbox, arrived: float
    ) -> None:
        self.index = index
        self.finish_sent = False
        """Whether the scheduler was told that a stop string ended the text."""
        self.finished: pb.Finished | None = None
        """Its end, once told."""
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self._request = request
        self._max_tokens = request.max_tokens
        self._has_scores = request.sampling.logprobs is not None
        self._outbox = outbox
        self._arrived = arrived
        self._text = ChoiceText(rules)
        self._scores: list[TokenScore] = []
        self._held_by_client = 0
        self._resume(rules, request.received.get(index, _NOTHING))

    @property
    def matched(self) -> bool:
        """Whether a stop string has ended the text; only the account is still to come."""
        return self._text.stopped_by is not None

    @property
    def num_tokens(self) -> int:
        """Output tokens that count so far."""
        return len(self._text.ids)

    def prior(self) -> scheduler_pb2.PriorOutput | None:
        """What the scheduler has to know of it when it gets the request anew; None for nothing."""
        if self.finished is not None:
            return scheduler_pb2.PriorOutput(index=self.index, finished=True)
        if not self._text.ids:
            return None
        return scheduler_pb2.PriorOutput(index=self.index, token_ids=self._text.ids)

    def take_tokens(self, offset: int, token_ids: Sequence[int], now: float) -> bool:
        """New ids, the first at output position ``offset``; those that are here already are dropped. Returns
        whether a stop string among them has ended the text.

        Runs once per choice and step, so it does nothing that it need not.

        Raises:
            ValueError: Ids between those here and these are missing.
        """
        growing = self._text
        have = len(growing.ids)
        if offset > have:
            raise ValueError(f"ids of choice {self.index} from {offset} on, but {have} are here")
        fresh = token_ids
        if offset < have or have + len(fresh) > self._max_tokens:
            fresh = fresh[have - offset : self._max_tokens - offset]
        if not fresh:
            return False
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        text = growing.feed(fresh)
        if self._held_by_client:
            text = self._fresh(text)
        is_over = growing.stopped_by is not None
        kept = fresh[: len(growing.ids) - have] if is_over else fresh
        scores = self._scores_of(len(kept)) if self._has_scores else ()
        self._outbox.put_tokens(self.index, text, kept, scores)
        return is_over

    def take_score(self, position: int, score: TokenScore) -> None:
        """The score of an output token; one that is here already is dropped.

        Raises:
            ValueError: Scores before it are missing.
        """
        ahead = position - len(self._text.ids) - len(self._scores)
        if ahead > 0:
            raise ValueError(f"a score of choice {self.index} {ahead} positions ahead")
        if ahead == 0:
            self._scores.append(score)

    def take_finish(self, done: scheduler_pb2.FinishedChoice) -> None:
        """The choice ended in the scheduler.

        Raises:
            ValueError: It ended for no known reason.
        """
        reason = _REASONS.get(done.reason)
        if self.matched:
            self._finish(pb.FINISH_REASON_STOP, None, done.account)
        elif reason is None:
            raise ValueError(f"choice {done.index} ended for reason {done.reason}")
        else:
            stop_id = done.stop_token_id if done.HasField("stop_token_id") else None
            score = done.beam_score if done.HasField("beam_score") else None
            self._finish(reason, stop_id, done.account, score)

    def settle(self) -> bool:
        """End the choice here if nothing of it is left to compute; whether it has ended.

        The ids of a beam are not all of it: the scheduler alone knows its score.
        """
        if self.finished is not None:
            return True
        ids, params = self._text.ids, self._request.params
        if self.matched:
            self._finish(pb.FINISH_REASON_STOP, None, None)
        elif self._request.sampling.beam_group is not None:
            return False
        elif ids and ids[-1] in params.stop_token_ids and len(ids) > params.min_tokens:
            self._finish(pb.FINISH_REASON_STOP, ids[-1], None)
        elif ids and len(ids) >= self._request.max_tokens:
            self._finish(pb.FINISH_REASON_LENGTH, None, None)
        return self.finished is not None

    def _resume(self, rules: TextRules, received: Received) -> None:
        """Bring the text to where the client is: it holds these ids and so many characters of their text."""
        if not received.token_ids and not received.num_chars:
            return
        text = self._text.feed(received.token_ids)
        if received.num_chars > len(text):
            whole = ChoiceText(rules)
            made = len(whole.feed(received.token_ids)) + len(whole.flush())
            if received.num_chars > made:
                limit = f"is more than its ids make, {made}"
                raise invalid(f"{received.field}.num_chars", received.num_chars, limit)
        self._held_by_client = received.num_chars
        if fresh := self._fresh(text):
            self._outbox.put_tokens(self.index, fresh, (), ())

    def _fresh(self, text: str) -> str:
        """What of a text a resumed client does not hold yet."""
        if not self._held_by_client:
            return text
        held = min(self._held_by_client, len(text))
        self._held_by_client -= held
        return text[held:]

    def _scores_of(self, count: int) -> list[TokenScore]:
        scores, self._scores = self._scores[:count], self._scores[count:]
        if len(scores) < count:
            missing = count - len(scores)
            log.warning("scores are missing", request_id=self._request.envelope.request_id, missing=missing)
            scores += [MISSING] * missing
        return scores

    def _finish(
        self,
        reason: pb.FinishReason.ValueType,
        stop_token_id: int | None,
        account: scheduler_pb2.ChoiceAccount | None,
        beam_score: float | None = None,
    ) -> None:
        rest = self._fresh(self._text.flush())
        if rest:
            self._outbox.put_tokens(self.index, rest, (), ())
        self.finished = pb.Finished(
            index=self.index,
            reason=reason,
            usage=pb.Usage(
                prompt_tokens=len(self._request.prompt),
                completion_tokens=len(self._text.ids),
                cached_tokens=account.cached_tokens if account is not None else 0,
            ),
            timings=self._timings(account),
            beam_score=beam_score,
        )
        if self._text.stopped_by is not None:
            self.finished.stop_string = self._text.stopped_by
        elif stop_token_id is not None:
            self.finished.stop_token_id = stop_token_id
        self._outbox.put(self.finished)

    def _timings(self, account: scheduler_pb2.ChoiceAccount | None) -> pb.Timings:
        if account is None:  # what the door saw itself
            first = self.first_token_at if self.first_token_at is not None else time.monotonic()
            last = self.last_token_at if self.last_token_at is not None else first
            account = scheduler_pb2.ChoiceAccount(
                prefill_us=int((first - self._arrived) * 1e6), decode_us=int((last - first) * 1e6)
            )
        timings = pb.Timings(preemptions=account.preemptions)
        timings.queue.FromMicroseconds(account.queue_us)
        timings.prefill.FromMicroseconds(account.prefill_us)
        timings.decode.FromMicroseconds(account.decode_us)
        return timings
