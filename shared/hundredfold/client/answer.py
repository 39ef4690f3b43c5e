"""A complete answer, as callers read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hundredfold.v1 import generation_pb2 as pb

FinishReason: TypeAlias = Literal["stop", "length", "unfinished"]

_REASONS: dict[int, FinishReason] = {
    pb.FINISH_REASON_UNSPECIFIED: "unfinished",
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of an answer.

    Attributes:
        text: Its text.
        token_ids: Its token ids.
        logprobs: One entry per token, when asked for.
        finished: How it ended, with usage and timings; empty while it runs.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[pb.TokenLogprobs, ...]
    finished: pb.Finished

    @property
    def finish_reason(self) -> FinishReason:
        """stop, length, or unfinished while it runs."""
        return _REASONS.get(self.finished.reason, "stop")

    @property
    def beam_score(self) -> float | None:
        """By which a beam search ranked it; None for a sampled choice."""
        return self.finished.beam_score if self.finished.HasField("beam_score") else None

    @property
    def matched(self) -> str | int | None:
        """The stop string or the stop token that ended it."""
        which = self.finished.WhichOneof("matched")
        return getattr(self.finished, which) if which else None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request; the properties are those of its first choice, but for the usage.

    Attributes:
        started: Its id, model and the sampling parameters in force.
        choices: The choices by index.
        prompt_logprobs: The prompt's scores, when asked for.
    """

    started: pb.Started
    choices: tuple[Choice, ...]
    prompt_logprobs: pb.PromptLogprobs

    @property
    def text(self) -> str:
        """The text."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ended."""
        return self.choices[0].finish_reason

    @property
    def usage(self) -> pb.Usage:
        """Tokens that all choices took together: the prompt once, as the first choice met it."""
        first = self.choices[0].finished.usage
        return pb.Usage(
            prompt_tokens=first.prompt_tokens,
            completion_tokens=sum(choice.finished.usage.completion_tokens for choice in self.choices),
            cached_tokens=first.cached_tokens,
        )

    @property
    def timings(self) -> pb.Timings:
        """Where its time went."""
        return self.choices[0].finished.timings


def answer_from_once(response: pb.GenerateOnceResponse) -> Answer:
    """The answer in a GenerateOnce reply."""
    choices = tuple(
        Choice(
            choice.content.text,
            tuple(choice.content.token_ids),
            tuple(choice.content.logprobs),
            choice.finished,
        )
        for choice in response.choices
    )
    return Answer(response.started, choices, response.prompt_logprobs)
