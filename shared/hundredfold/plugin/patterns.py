"""Patterns that checkpoints bring: compiled only when they are well formed and sure to end soon.

A checkpoint is a stranger's, and a regular expression of a stranger's can be made to run for years.
"""

from __future__ import annotations

import re

MAX_LENGTH = 1000
MAX_REPEATS = 5
"""Repeats without limit: with five, the longest name of a layer is matched or not in well under a second."""

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|\(\?[^:=!<>)]*\)|.", re.DOTALL)
"""An escape, a class, a counted repeat, a flag, or one character."""


def compile_pattern(text: str, key: str) -> re.Pattern[str]:
    """The pattern. Raises ``ValueError`` naming ``key`` and what is wrong with the pattern.

    Refused are repeats of what holds repeats or choices itself, more than ``MAX_REPEATS`` repeats without a
    limit, and references back: each can take time that grows without bound.
    """
    shown = f"{key}: pattern '{text[:80]}'"
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{shown} has {len(text)} characters, the limit is {MAX_LENGTH}")
    reason = _endless(text)
    if reason:
        raise ValueError(f"{shown} {reason}")
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{shown} is no regular expression: {error}") from error


def _endless(text: str) -> str:
    """Why matching could take too long; empty when it cannot."""
    repeats = 0
    open_groups: list[bool] = [False]
    """For each group that is open, outermost first, whether it holds a repeat or a choice."""
    closed = False
    """Whether the element before is a group that does."""
    if "(?P=" in text:
        return "refers back to a group, which is not read"
    for token in _TOKEN.findall(text):
        if re.fullmatch(r"\\[1-9]", token):
            return "refers back to a group, which is not read"
        if token in ("*", "+") or (token.startswith("{") and "," in token):
            if closed:
                return "repeats a group that holds repeats or choices itself, which could take for ever"
            repeats += 1
            open_groups[-1] = True
        closed = False
        if token == "(":
            open_groups.append(False)
        elif token == "|":
            open_groups[-1] = True
        elif token == ")" and len(open_groups) > 1:
            closed = open_groups.pop()
            open_groups[-1] |= closed
    if repeats > MAX_REPEATS:
        return f"has {repeats} repeats without limit, at most are {MAX_REPEATS}"
    return ""
