"""One streamed request over as many connections as it takes. No I/O: both clients drive it.

It knows what has arrived, so it can say what to send after a connection was lost, and drops what comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import grpc

from hundredfold.client.answer import Answer, Choice
from hundredfold.client.errors import NotPossible, RequestFailed, Unavailable, typed
from hundredfold.client.requests import fill_unset
from hundredfold.client.retry import Attempts
from hundredfold.v1 import generation_pb2 as pb

Event: TypeAlias = pb.Started | pb.PromptLogprobs | pb.Delta | pb.Finished
"""What a stream yields: started, the prompt's scores if asked for, deltas, and one finished per choice."""

MAX_CHOICES = 1024


@dataclass(slots=True)
class _Received:
    """What has arrived of one choice."""

    pieces: list[str] = field(default_factory=list)
    num_chars: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[pb.TokenLogprobs] = field(default_factory=list)
    finished: pb.Finished | None = None

    def choice(self) -> Choice:
        return Choice(
            "".join(self.pieces), tuple(self.token_ids), tuple(self.logprobs), self.finished or pb.Finished()
        )


class GenerateSession:
    """The state of one ``generate`` call."""

    def __init__(self, request: pb.GenerateRequest, attempts: Attempts) -> None:
        self._request = request
        self._attempts = attempts
        self._started: pb.Started | None = None
        self._prompt_logprobs: pb.PromptLogprobs | None = None
        self._choices: dict[int, _Received] = {}
        self.request_id = request.request_id
        """The id under which the server runs it now; empty before it has started."""
        self.resumes = 0
        """How many times a lost connection was made good."""

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        expected = max(1, self._request.sampling.n)
        return sum(received.finished is not None for received in self._choices.values()) >= expected

    def answer(self) -> Answer:
        """What has arrived so far."""
        count = max(1, self._request.sampling.n, *(index + 1 for index in self._choices))
        choices = tuple(self._choices.get(index, _Received()).choice() for index in range(count))
        return Answer(self._started or pb.Started(), choices, self._prompt_logprobs or pb.PromptLogprobs())

    def remaining(self) -> float | None:
        """Seconds for the next call. Raises DeadlineExceeded."""
        return self._attempts.remaining()

    def next_request(self) -> pb.GenerateRequest:
        """The request as it stands, or with all that fixes its continuation once it has started."""
        if self._started is None:
            return self._request
        request = pb.GenerateRequest()
        request.CopyFrom(self._request)
        fill_unset(request.sampling, self._started.sampling)
        for index, received in self._choices.items():
            request.resume.choices.add(
                index=index, token_ids=received.token_ids, num_chars=received.num_chars
            )
        return request

    def accept(self, response: pb.GenerateResponse) -> Event | None:
        """Take in one message; returns the event for the caller, None for what it has already.

        Raises:
            RequestFailed: The server goes on with another prompt or model than it began with.
        """
        which = response.WhichOneof("event")
        if which == "delta":
            return self._accept_delta(response.delta)
        if which == "finished":
            received = self._received(response.finished.index)
            if received.finished is None:
                self._attempts.progressed()
                received.finished = response.finished
                return response.finished
        elif which == "started":
            return self._accept_started(response.started)
        elif which == "prompt_logprobs" and self._prompt_logprobs is None:
            self._prompt_logprobs = response.prompt_logprobs
            return response.prompt_logprobs
        return None

    def failed(self, error: grpc.RpcError) -> float:
        """The call broke: seconds to wait before the next try.

        Raises:
            RequestFailed: There is no next try.
        """
        return self._next_try(typed(error))

    def ended(self) -> float:
        """The call ended well, but some choice did not: the same as ``failed``."""
        message = "the stream ended before the answer was complete"
        return self._next_try(Unavailable(grpc.StatusCode.UNAVAILABLE, message))

    def _next_try(self, error: RequestFailed) -> float:
        return self._attempts.delay_after(error, resuming=self._started is not None)

    def _accept_started(self, started: pb.Started) -> pb.Started | None:
        self.request_id = started.request_id
        if self._started is None:
            self._attempts.progressed()
            self._started = started
            return started
        before = self._started
        if (started.model, started.prompt_tokens) != (before.model, before.prompt_tokens):
            raise NotPossible(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"cannot resume: the request began on model '{before.model}' with {before.prompt_tokens} "
                f"prompt tokens, and the server now has '{started.model}' with {started.prompt_tokens}",
            )
        self.resumes += 1
        return None

    def _accept_delta(self, delta: pb.Delta) -> pb.Delta | None:
        received = self._received(delta.index)
        if received.finished is not None:
            return None
        self._attempts.progressed()
        if delta.text:
            received.pieces.append(delta.text)
            received.num_chars += len(delta.text)
        received.token_ids.extend(delta.token_ids)
        received.logprobs.extend(delta.logprobs)
        return delta

    def _received(self, index: int) -> _Received:
        received = self._choices.get(index)
        if received is None:
            if index >= MAX_CHOICES:
                raise RequestFailed(grpc.StatusCode.INTERNAL, f"the server sent choice {index}")
            received = self._choices[index] = _Received()
        return received
