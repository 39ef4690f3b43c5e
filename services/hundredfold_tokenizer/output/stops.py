"""Finds stop strings in text that arrives in pieces, and holds back what may become one.

Each stop string has its own Knuth-Morris-Pratt automaton, so a match may span any number of pieces, every
character costs the same however much came before, and what is held back is exactly the longest beginning of a
stop string that the text ends with.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string was completed.

    Attributes:
        stop: Which one.
        text: What may still go out: held text up to the match, and the match too if stops are included.
    """

    stop: str
    text: str


class StopMatcher:
    """Watches one text for stop strings; the one that is complete first wins, of several the longest.

    Args:
        stops: Not empty, none of them empty.
        include_stop: Whether the matched string belongs to the text.
    """

    __slots__ = ("_failures", "_first", "_held", "_held_chars", "_include", "_states", "_stops")

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._failures = [_failure(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._first = re.compile("[" + re.escape("".join({stop[0] for stop in self._stops})) + "]")
        self._include = include_stop
        self._held: deque[tuple[str, bool]] = deque()
        self._held_chars = 0

    def feed(self, text: str, *, armed: bool, hidden: bool = False) -> str | Match:
        """What can go out now, or the match that ends the text.

        Args:
            text: The next piece.
            armed: Whether a stop string that this piece completes counts.
            hidden: Whether the piece is matched but never goes out, as a special token that is left out.
        """
        if not self._held_chars and self._first.search(text) is None:
            return "" if hidden else text
        found = self._advance(text, armed)
        self._held.append((text, hidden))
        self._held_chars += len(text)
        if found is None:
            return self._release(self._held_chars - max(self._states))
        stop, end = found
        end += self._held_chars - len(text)
        return Match(stop, self._release(end if self._include else end - len(stop)))

    def flush(self) -> str:
        """The held text, when nothing follows that could complete a stop string."""
        return self._release(self._held_chars)

    def _advance(self, text: str, armed: bool) -> tuple[str, int] | None:
        """Move every automaton over the text; the first match and how many characters of the text it took."""
        stops, failures, states = self._stops, self._failures, self._states
        for position, char in enumerate(text):
            matched = ""
            for index, stop in enumerate(stops):
                state = states[index]
                if stop[state] != char:
                    failure = failures[index]
                    while state and stop[state] != char:
                        state = failure[state - 1]
                    if stop[state] != char:
                        states[index] = 0
                        continue
                state += 1
                if state == len(stop):
                    matched = max(matched, stop, key=len)
                    state = failures[index][state - 1]
                states[index] = state
            if matched and armed:
                return matched, position + 1
        return None

    def _release(self, chars: int) -> str:
        """Take ``chars`` off the front of what is held; its visible part is returned."""
        out: list[str] = []
        self._held_chars -= chars
        while chars > 0:
            text, hidden = self._held.popleft()
            if len(text) > chars:
                self._held.appendleft((text[chars:], hidden))
                text = text[:chars]
            chars -= len(text)
            if not hidden:
                out.append(text)
        return "".join(out)


def _failure(stop: str) -> list[int]:
    """For each beginning of the string, the length of its longest proper beginning that it also ends with."""
    table = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = table[length - 1]
        length += stop[index] == stop[length]
        table[index] = length
    return table
