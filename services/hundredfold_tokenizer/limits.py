"""Every bound on a request, in one place: the contract's own and the door's."""

from __future__ import annotations

from dataclasses import dataclass

MAX_STOPS = 16
MAX_STOP_BYTES = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 32
MAX_BAD_WORD_BYTES = 1024
MAX_LOGIT_BIAS = 1024
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_BEAM_WIDTH = 8

MAX_REQUEST_ID_CHARS = 128
MAX_NAME_BYTES = 256
"""For model, tenant and cache_salt."""

MAX_MESSAGES = 4096
MAX_ROLE_CHARS = 64
MAX_JSON_BYTES = 1024 * 1024
"""For each of tools, template arguments and a message's tool calls."""

MAX_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a field takes, ends included unless ``above_low``."""

    low: float
    high: float
    above_low: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value is in it; NaN never is."""
        return (self.low < value if self.above_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        """In words, for messages."""
        if self.above_low:
            return f"above {self.low:g} and at most {self.high:g}"
        return f"from {self.low:g} to {self.high:g}"


RANGES = {
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, above_low=True),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0.001, 100),  # a logit divided by less may pass what a float holds
}
"""Sampling fields that are fractions."""

BIAS = Range(-100, 100)
LENGTH_PENALTY = Range(-10, 10)
UINT32 = Range(0, 2**32 - 1)
