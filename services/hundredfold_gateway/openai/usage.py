"""What an answer took, over all its prompts and choices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hundredfold.client import Answer, Event, Finished, Started


@dataclass(slots=True)
class Usage:
    """Tokens counted as the door counts them; a prompt counts once, however many choices it has."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    _cached: dict[int, int] = field(default_factory=dict)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache saved."""
        return sum(self._cached.values())

    def take(self, prompt: int, event: Event) -> None:
        """An event of the prompt with this number."""
        if isinstance(event, Started):
            self.prompt_tokens += event.prompt_tokens
        elif isinstance(event, Finished):
            self.completion_tokens += event.usage.completion_tokens
            # The first choice computes the prompt; the others find it in the cache.
            self._cached[prompt] = min(
                self._cached.get(prompt, event.usage.cached_tokens), event.usage.cached_tokens
            )

    def body(self) -> dict[str, Any]:
        """As clients read it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def usage_of(answers: Iterable[Answer]) -> Usage:
    """The usage of whole answers."""
    usage = Usage()
    for prompt, answer in enumerate(answers):
        usage.take(prompt, answer.started)
        for choice in answer.choices:
            usage.take(prompt, choice.finished)
    return usage
