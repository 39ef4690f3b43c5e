"""Whole answers: one JSON object each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hundredfold.client import Answer, Choice
from hundredfold_gateway.openai.head import Head, finish_reason, stop_reason
from hundredfold_gateway.openai.scores import CompletionScores, chat_scores, joined, prompt_scores
from hundredfold_gateway.openai.usage import usage_of


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is repeated before its completion.

    Attributes:
        text: The prompt as text.
        first: The text of its first token; only where its scores are wanted.
    """

    text: str
    first: str = ""


def whole_chat(head: Head, answer: Answer, *, scores: bool) -> dict[str, Any]:
    """A ``chat.completion``."""
    head.model = answer.started.model
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": {"content": chat_scores(choice.logprobs), "refusal": None} if scores else None,
            "finish_reason": finish_reason(choice.finished),
            "stop_reason": stop_reason(choice.finished),
        }
        for index, choice in enumerate(answer.choices)
    ]
    return {**head.body("chat.completion", choices), "usage": usage_of([answer]).body()}


def whole_completion(
    head: Head, answers: Sequence[Answer], echoes: Sequence[Echo | None], *, scores: bool
) -> dict[str, Any]:
    """A ``text_completion``; choices of the first prompt come first."""
    head.model = answers[0].started.model
    choices: list[dict[str, Any]] = []
    for answer, echo in zip(answers, echoes, strict=True):
        for choice in answer.choices:
            choices.append(
                {
                    "index": len(choices),
                    "text": choice.text if echo is None else echo.text + choice.text,
                    "logprobs": _scores(answer, choice, echo) if scores else None,
                    "finish_reason": finish_reason(choice.finished),
                    "stop_reason": stop_reason(choice.finished),
                }
            )
    return {**head.body("text_completion", choices), "usage": usage_of(answers).body()}


def _scores(answer: Answer, choice: Choice, echo: Echo | None) -> dict[str, list[Any]]:
    if echo is None:
        return CompletionScores().write(choice.logprobs)
    prompt = prompt_scores(echo.text, echo.first, answer.prompt_logprobs.tokens)
    return joined(prompt, CompletionScores(len(echo.text)).write(choice.logprobs))
