"""Streamed answers: one JSON object per piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from hundredfold.client import Delta, Event, Finished, PromptLogprobs, Started
from hundredfold_gateway.openai.head import Head, finish_reason, stop_reason
from hundredfold_gateway.openai.scores import CompletionScores, chat_scores, prompt_scores
from hundredfold_gateway.openai.usage import Usage
from hundredfold_gateway.openai.whole import Echo


class Chunks(Protocol):
    """Turns events into chunks."""

    def take(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """The chunks that an event of the prompt with this number becomes."""

    def close(self) -> Iterator[dict[str, Any]]:
        """What comes when all have ended."""


class _Frame:
    """What all chunks of one answer have in common."""

    def __init__(self, head: Head, kind: str, *, include_usage: bool) -> None:
        self._head = head
        self._kind = kind
        self._include_usage = include_usage
        self._usage = Usage()

    def take(self, prompt: int, event: Event) -> None:
        self._usage.take(prompt, event)
        if isinstance(event, Started) and not self._head.model:
            self._head.model = event.model

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        body = self._head.body(self._kind, [choice])
        return {**body, "usage": None} if self._include_usage else body

    def close(self) -> Iterator[dict[str, Any]]:
        if self._include_usage:
            yield {**self._head.body(self._kind, []), "usage": self._usage.body()}


class ChatChunks:
    """``chat.completion.chunk`` objects; each choice begins with its role."""

    def __init__(self, head: Head, *, scores: bool, include_usage: bool) -> None:
        self._frame = _Frame(head, "chat.completion.chunk", include_usage=include_usage)
        self._scores = scores
        self._begun: set[int] = set()

    def take(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """See ``Chunks``."""
        self._frame.take(prompt, event)
        if isinstance(event, Delta | Finished) and event.index not in self._begun:
            self._begun.add(event.index)
            yield self._chunk(event.index, {"role": "assistant", "content": ""})
        if isinstance(event, Delta):
            scores = chat_scores(event.logprobs) if self._scores else []
            if event.text or scores:
                yield self._chunk(event.index, {"content": event.text}, scores)
        elif isinstance(event, Finished):
            choice = {"index": event.index, "delta": {}, "logprobs": None}
            reasons = {"finish_reason": finish_reason(event), "stop_reason": stop_reason(event)}
            yield self._frame.chunk({**choice, **reasons})

    def close(self) -> Iterator[dict[str, Any]]:
        """See ``Chunks``."""
        yield from self._frame.close()

    def _chunk(self, index: int, delta: dict[str, Any], scores: Sequence[Any] = ()) -> dict[str, Any]:
        logprobs = {"content": scores, "refusal": None} if scores else None
        return self._frame.chunk(
            {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        )


class CompletionChunks:
    """``text_completion`` objects; choices of the first prompt have the first numbers."""

    def __init__(
        self,
        head: Head,
        echoes: Sequence[Echo | None],
        choices: int,
        *,
        scores: bool,
        include_usage: bool,
    ) -> None:
        self._frame = _Frame(head, "text_completion", include_usage=include_usage)
        self._echoes = echoes
        self._choices = choices
        self._scores = scores
        self._prompt_scores: dict[int, dict[str, list[Any]]] = {}
        self._begun: dict[int, CompletionScores] = {}

    def take(self, prompt: int, event: Event) -> Iterator[dict[str, Any]]:
        """See ``Chunks``."""
        self._frame.take(prompt, event)
        echo = self._echoes[prompt]
        if isinstance(event, PromptLogprobs) and echo is not None and self._scores:
            self._prompt_scores[prompt] = prompt_scores(echo.text, echo.first, event.tokens)
        if not isinstance(event, Delta | Finished):
            return
        index = prompt * self._choices + event.index
        if index not in self._begun:
            self._begun[index] = CompletionScores(0 if echo is None else len(echo.text))
            if echo is not None:
                yield self._chunk(index, echo.text, self._prompt_scores.get(prompt))
        if isinstance(event, Delta):
            scores = self._begun[index].write(event.logprobs) if self._scores and event.logprobs else None
            if event.text or scores:
                yield self._chunk(index, event.text, scores)
        else:
            choice = {"index": index, "text": "", "logprobs": None}
            reasons = {"finish_reason": finish_reason(event), "stop_reason": stop_reason(event)}
            yield self._frame.chunk({**choice, **reasons})

    def close(self) -> Iterator[dict[str, Any]]:
        """See ``Chunks``."""
        yield from self._frame.close()

    def _chunk(self, index: int, text: str, scores: dict[str, list[Any]] | None) -> dict[str, Any]:
        return self._frame.chunk({"index": index, "text": text, "logprobs": scores, "finish_reason": None})
