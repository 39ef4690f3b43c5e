"""Keeps apart, in a rendered chat, the special tokens that the template wrote and those that a user wrote.

What comes from a user is marked before it goes into the template: each special token's text is put between
two private characters, and a text that could make one together with its surroundings gets another at that
end. What comes out unmarked is the template's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_PRIVATE = range(0xE000, 0xF8FF)


class Marker:
    """The markers of one rendering.

    Args:
        written: Matches any special token's text.
        edges: Beginnings and ends of special tokens' texts.
        taken: Text in which the markers must not occur: all that goes into the template.
    """

    def __init__(self, written: re.Pattern[str], edges: Edges, taken: str) -> None:
        used = set(re.findall("[\ue000-\uf8ff]", taken))
        used |= {chr(int(code, 16)) for code in re.findall(r"\\u([ef][0-9a-f]{3})", taken.lower())}
        free = [chr(code) for code in _PRIVATE if chr(code) not in used][:4]
        if len(free) < 4:
            raise ValueError("uses every private character, and some are needed")
        self.start, self.end, self.edge, self.cut = free
        self._written = written
        self._edges = edges
        # A template may also write text as JSON in ASCII, markers included.
        start, end, edge = (f"(?:{char}|\\\\u{ord(char):04x})" for char in (self.start, self.end, self.edge))
        self._marked = re.compile(f"{start}({written.pattern}){end}|({written.pattern})|{start}|{end}|{edge}")

    def mark(self, value: Any) -> Any:
        """A JSON value with every string in it marked; keys only where they hold a special token."""
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, list):
            return [self.mark(item) for item in value]
        if isinstance(value, dict):
            return {self._fence(key): self.mark(item) for key, item in value.items()}
        return value

    def unmark(self, rendered: str, spell: Callable[[str], str]) -> tuple[str, str]:
        """The rendered text without markers, as people read it, and as the encoder wants it.

        ``spell`` writes a special token in the encoder's way.
        """

        def visible(match: re.Match[str]) -> str:
            return match[1] or match[2] or ""

        def spelt(match: re.Match[str]) -> str:
            return match[1] or (spell(match[2]) if match[2] else "")

        return self._marked.sub(visible, rendered), self._marked.sub(spelt, rendered)

    def _mark_text(self, text: str) -> str:
        before = self.edge if self._edges.ends_in(text) else ""
        after = self.edge if self._edges.begins_in(text) else ""
        return f"{before}{self._fence(text)}{after}"

    def _fence(self, text: str) -> str:
        return self._written.sub(lambda match: f"{self.start}{match[0]}{self.end}", text)


class Edges:
    """Whether a text begins as a special token ends, or ends as one begins."""

    def __init__(self, controls: list[str]) -> None:
        self._beginnings = {text[:size] for text in controls for size in range(1, len(text))}
        self._endings = {text[size:] for text in controls for size in range(1, len(text))}
        self._longest = max((len(text) - 1 for text in controls), default=0)

    def begins_in(self, text: str) -> bool:
        """Whether the text's end begins a special token."""
        sizes = range(1, min(self._longest, len(text)) + 1)
        return any(text[-size:] in self._beginnings for size in sizes)

    def ends_in(self, text: str) -> bool:
        """Whether the text's beginning ends a special token."""
        sizes = range(1, min(self._longest, len(text)) + 1)
        return any(text[:size] in self._endings for size in sizes)
