"""The text that inputs are taken from: a file, or pages of Python's help that ``quality`` does not score."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hundredfold_worker.quality.text import PAGES, encoder
from hundredfold_worker.quantize.errors import QuantizeError

LEAST_IDS = 32


@dataclass(frozen=True, slots=True)
class Calibration:
    """A text as ids."""

    name: str
    digest: str
    """Of the ids: what a resumed run compares."""
    windows: tuple[tuple[int, ...], ...]
    """Sequences, each run by itself."""

    @property
    def num_tokens(self) -> int:
        """Ids of all sequences."""
        return sum(map(len, self.windows))


def calibration(model: str, path: Path | None, samples: int, window: int) -> Calibration:
    """At most ``samples`` sequences of ``window`` ids, spread over the text. Raises ``QuantizeError``."""
    name, text = _text(path)
    try:
        prefix, ids = encoder()(model, text)
    except ValueError as error:
        raise QuantizeError(f"calibration text: {error}") from error
    room = window - len(prefix)
    if room < 1:
        raise QuantizeError(f"a window of {window} has no room behind the {len(prefix)} ids before a text")
    pieces = [ids[first : first + room] for first in range(0, len(ids), room)]
    if len(pieces) > 1 and len(pieces[-1]) < room:
        pieces.pop()
    if sum(map(len, pieces)) < LEAST_IDS:
        raise QuantizeError(f"{name} has {len(ids)} tokens; the least to calibrate on is {LEAST_IDS}")
    windows = tuple((*prefix, *piece) for piece in spread(pieces, samples))
    digest = hashlib.sha256(repr(windows).encode()).hexdigest()
    return Calibration(name, digest, windows)


def spread(pieces: Sequence[list[int]], count: int) -> list[list[int]]:
    """``count`` of the pieces at equal distances, all when there are fewer."""
    if len(pieces) <= count:
        return list(pieces)
    return [pieces[index * len(pieces) // count] for index in range(count)]


def _text(path: Path | None) -> tuple[str, str]:
    if path is not None:
        try:
            return str(path), path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise QuantizeError(f"calibration text {path} cannot be read: {error}") from error
    from pydoc_data.topics import topics

    pages = sorted(set(topics) - set(PAGES))
    name = f"pydoc_data.topics, {len(pages)} pages that `hundredfold quality` does not score"
    return name, "\n".join(topics[page] for page in pages)
