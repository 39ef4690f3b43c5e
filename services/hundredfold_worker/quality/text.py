"""The text that is scored: a file, or pages that every Python brings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from hundredfold.errors import StartError

PAGES = (
    "objects",
    "naming",
    "exceptions",
    "import",
    "function",
    "with",
    "attribute-access",
    "customization",
)
"""Topics of ``pydoc_data.topics``, which Python's own help() shows: English prose with some code."""

Encode = Callable[[str, str], tuple[tuple[int, ...], list[int]]]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A text as one model's ids, cut in windows that are scored each by itself."""

    name: str
    digest: str
    """First digits of the text's SHA-256: pages differ a little between versions of Python."""
    windows: tuple[tuple[int, ...], ...]
    unscored: int
    """Leading ids of each window that are not scored: what the tokenizer puts first, or one id."""

    @property
    def num_scored(self) -> int:
        """Ids that are scored."""
        return sum(len(window) - self.unscored for window in self.windows)


def read_text(path: Path | None, pages: Sequence[str] | None = PAGES) -> tuple[str, str]:
    """Name and text of a file, or of pages; ``None`` for every page. Raises ``StartError``."""
    if path is not None:
        try:
            return str(path), path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"text {path} cannot be read: {error}") from error
    from pydoc_data.topics import topics

    if pages is None:
        return "pydoc_data.topics, every page", "\n".join(topics[page] for page in sorted(topics))
    return f"pydoc_data.topics: {', '.join(pages)}", "\n".join(topics[page] for page in pages)


def cut(model: str, path: Path | None, num_tokens: int, window: int) -> HeldOut:
    """The first ``num_tokens`` ids of the text in windows of at most ``window``. Raises ``StartError``."""
    name, text = read_text(path)
    prefix, ids = _encoded(model, text)
    ids = ids[:num_tokens]
    room = window - len(prefix)
    pieces = [ids[first : first + room] for first in range(0, len(ids), room)]
    unscored = len(prefix) or 1
    windows = tuple((*prefix, *piece) for piece in pieces if len(prefix) + len(piece) > unscored)
    if not windows:
        raise StartError(f"the text has {len(ids)} tokens, which leaves none to score")
    return HeldOut(name, _digest(text), windows, unscored)


def spread(model: str, path: Path | None, rows: int, window: int, scored: int) -> HeldOut:
    """``rows`` windows spread over the file, or over every page; of each the last ``scored`` ids count.

    Windows may overlap, what is scored of them may not. Raises ``StartError``.
    """
    name, text = read_text(path, None)
    prefix, ids = _encoded(model, text)
    own = window - len(prefix)
    if scored > own - 2:
        raise StartError(f"decode is {scored}; windows of {window} leave {max(own - 2, 0)} at most")
    apart = (len(ids) - own) // max(rows - 1, 1)
    if len(ids) < own or (rows > 1 and apart < scored):
        raise StartError(f"the text has {len(ids)} tokens, too few for {rows} windows of {window}")
    windows = tuple((*prefix, *ids[row * apart : row * apart + own]) for row in range(rows))
    return HeldOut(name, _digest(text), windows, window - scored)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _encoded(model: str, text: str) -> tuple[tuple[int, ...], list[int]]:
    try:
        return encoder()(model, text)
    except ValueError as error:
        raise StartError(f"the text cannot be encoded: {error}") from error


def encoder() -> Encode:
    """What turns a text into a model's ids. Raises ``StartError`` when no package offers it."""
    found = list(entry_points(group="hundredfold.tools", name="encode"))
    if not found:
        raise StartError("no installed package offers the tool 'encode': install hundredfold again")
    return cast(Encode, found[0].load())
