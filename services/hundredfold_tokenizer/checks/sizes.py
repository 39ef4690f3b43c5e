"""Checks of the vocabulary's size against the model's tables, and of the sampling that comes along."""

from __future__ import annotations

from collections.abc import Iterator

from hundredfold.findings import Finding, Severity, fine
from hundredfold_tokenizer.checks.stated import Stated
from hundredfold_tokenizer.vocabulary import Vocabulary

HOT = 1.3
"""Temperature above which small models write nonsense."""
STRONG = 1.3
"""Repetition penalty above which answers avoid the words that they need."""


def check_sizes(vocabulary: Vocabulary, stated: Stated) -> Iterator[Finding]:
    """Ids that the model does not have."""
    if stated.rows is None:
        return
    if vocabulary.size > stated.rows:
        yield Finding(
            "vocabulary-too-large",
            Severity.ERROR,
            f"the tokenizer has {vocabulary.size} ids, the model's tables have {stated.rows}",
            "the tokenizer belongs to another model, or tokens were added without resizing the tables",
            "take tokenizer.json of this very checkpoint",
        )
    else:
        spare = stated.rows - vocabulary.size
        yield fine("vocabulary", f"{vocabulary.size} ids, {spare} rows of the tables are spare")


def check_defaults(stated: Stated) -> Iterator[Finding]:
    """Sampling that the checkpoint asks for."""
    temperature = stated.sampling.get("temperature", 1.0)
    penalty = stated.sampling.get("repetition_penalty", 1.0)
    if temperature > HOT:
        yield Finding(
            "hot-defaults",
            Severity.WARNING,
            f"generation_config.json asks for temperature {temperature:g}",
            "requests that set none are sampled so, and answers drift",
            "set temperature in requests, or a lower one in generation_config.json",
        )
    if penalty > STRONG:
        yield Finding(
            "strong-penalty",
            Severity.WARNING,
            f"generation_config.json asks for repetition_penalty {penalty:g}",
            "every token of the prompt is held back, names and numbers too",
            "set repetition_penalty to 1 in requests or in generation_config.json",
        )
    if temperature <= HOT and penalty <= STRONG:
        told = ", ".join(f"{name} {value:g}" for name, value in stated.sampling.items())
        yield fine("defaults", told or "the checkpoint asks for no sampling of its own")
