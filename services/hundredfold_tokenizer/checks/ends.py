"""Checks of where an answer ends: ends that nobody names, that disagree, that the model cannot say."""

from __future__ import annotations

from collections.abc import Iterator

from hundredfold.findings import Finding, Severity, fine
from hundredfold_tokenizer.checks.stated import Stated
from hundredfold_tokenizer.vocabulary import Vocabulary


def check_ends(vocabulary: Vocabulary, stated: Stated) -> Iterator[Finding]:
    """Ends of sequence or turn."""
    if not stated.merged:
        yield Finding(
            "eos-missing",
            Severity.ERROR,
            "neither tokenizer nor config nor generation_config names an end: answers run to their limit",
            "eos_token is missing in tokenizer_config.json, or its text is no token of the vocabulary",
            "set eos_token_id in generation_config.json, or send stop_token_ids with each request",
        )
        return
    beyond = sorted(index for index in stated.merged if index >= (stated.rows or vocabulary.size))
    if beyond:
        yield Finding(
            "eos-beyond-vocabulary",
            Severity.ERROR,
            f"end {_ids(beyond)} is beyond the model's {stated.rows or vocabulary.size} ids: it never comes",
            "tokens were added to the tokenizer, but the model's tables were not resized",
            "take the tokenizer of this very checkpoint, or correct eos_token_id",
        )
    if len(set(stated.ends.values())) > 1:
        said = ", ".join(f"{name} {_named(vocabulary, ids)}" for name, ids in stated.ends.items())
        yield Finding(
            "eos-disagree",
            Severity.WARNING,
            f"the files name different ends: {said}",
            "a chat model was made of a base model, and one file still has the base model's end",
            "this server stops at all of them; for others write all into generation_config.json",
        )
    else:
        yield fine("eos", f"every file that names an end names {_named(vocabulary, stated.merged)}")


def _named(vocabulary: Vocabulary, ids: frozenset[int]) -> str:
    table = vocabulary.table
    shown = []
    for index in sorted(ids)[:6]:
        text = table.whole[index] if index < table.size else None
        shown.append(f"{index} {text!r}" if text else str(index))
    return " and ".join(shown)


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:6]))
