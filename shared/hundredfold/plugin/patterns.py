"""Patterns that checkpoints bring: compiled only when they are well formed and sure to end soon.

A checkpoint is a stranger's, and a regular expression of a stranger's can be made to run for years.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import comb

MAX_LENGTH = 1000
LONGEST_NAME = 64
"""Characters of a layer's name, about."""
MAX_WAYS = comb(LONGEST_NAME, 5)
"""Ways to read a name that a pattern may leave open, some seven million: tried in about a second."""

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,?\d*\}|\(\?[^:=!<>)]*\)|.", re.DOTALL)
"""An escape, a class, a counted repeat, a flag, or one character."""


def compile_pattern(text: str, key: str) -> re.Pattern[str]:
    """The pattern. Raises ``ValueError`` naming ``key`` and what is wrong with the pattern.

    Refused are repeats of what holds repeats or choices itself, references back, and more repeats and choices
    than ``MAX_WAYS`` allows: each can take time that grows without bound.
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


@dataclass(slots=True)
class _Group:
    """A group that is open."""

    choices: int = 1
    varies: bool = False
    """Whether it holds a repeat or a choice."""


def _endless(text: str) -> str:
    """Why matching could take too long; empty when it cannot."""
    repeats, ways = 0, 1
    groups = [_Group()]
    """Those that are open, outermost first."""
    closed = repeated = False
    """What is before: a group that varies; a repeat, which ``?`` makes lazy."""
    before = ""
    if "(?P=" in text:
        return "refers back to a group, which is not read"
    for token in _TOKEN.findall(text):
        if re.fullmatch(r"\\[1-9]", token):
            return "refers back to a group, which is not read"
        repeat = token in ("*", "+") or (token.startswith("{") and token.endswith("}"))
        if repeat and closed:
            return "repeats a group that holds repeats or choices itself, which could take for ever"
        if repeat and (token in ("*", "+") or "," in token):
            repeats += 1
            groups[-1].varies = True
        optional = token == "?" and before != "(" and not repeated
        if optional:
            ways *= 2
            groups[-1].varies = True
        closed, repeated, before = False, repeat or optional, token
        if token == "(":
            groups.append(_Group())
        elif token == "|":
            groups[-1].choices += 1
            groups[-1].varies = True
        elif token == ")" and len(groups) > 1:
            group = groups.pop()
            ways *= group.choices
            closed = group.varies
            groups[-1].varies |= closed
    ways *= groups[0].choices
    if comb(LONGEST_NAME, repeats) * ways > MAX_WAYS or repeats > LONGEST_NAME // 2:
        return f"has {repeats} repeats without limit and {ways} combinations of choices, which is too many"
    return ""
