"""The prompts of a run: a function of seed and number alone, so any process can make any of them."""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hundredfold.v1.generation_pb2 import GenerateRequest

ORDINARY_TEXT = " ".join(map("".join, itertools.product(string.ascii_lowercase, repeat=2)))
"""A text whose encoding is a pool of ordinary token ids. Special tokens never come out of a plain text, so
random prompts drawn from this pool hold none, whatever the tokenizer."""

MAX_PROMPT_FILE_BYTES = 64 * 2**20


class PromptSource(Protocol):
    """Writes prompts into requests."""

    def fill(self, request: GenerateRequest, index: int, *, warmup: bool) -> None:
        """Put prompt number `index` into `request`; warm-up prompts differ from measured ones if they can."""

    def repeated_share(self, count: int) -> float:
        """Return the share of the first `count` prompts that an earlier one equals."""


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """Prompts of an exact length: random ids out of a pool, the first ones the same in all when asked.

    With a phrase the rest of each prompt says one thing over and over, which a model goes on copying.
    """

    pool: np.ndarray[Any, np.dtype[np.uint32]]
    """[ids] uint32: ids to draw from."""
    length: int
    prefix: tuple[int, ...]
    """Leading ids that all prompts share, warm-up included."""
    seed: int
    phrase: int = 0
    """Ids after which the rest of a prompt repeats; 0 draws every one."""

    @classmethod
    def draw(
        cls,
        pool: np.ndarray[Any, np.dtype[np.uint32]],
        length: int,
        shared_prefix: int,
        seed: int,
        phrase: int = 0,
    ) -> RandomPrompts:
        """Draw the shared prefix; the rest of each prompt is drawn when it is asked for."""
        prefix = np.random.default_rng((seed, 2)).choice(pool, shared_prefix)
        return cls(pool, length, tuple(prefix.tolist()), seed, phrase)

    def ids(self, index: int, *, warmup: bool) -> list[int]:
        """Return the ids of prompt number `index`."""
        own = np.random.default_rng((self.seed, 3, int(warmup), index))
        count = self.length - len(self.prefix)
        rest = np.resize(own.choice(self.pool, self.phrase or count), count)
        return [*self.prefix, *rest.tolist()]

    def fill(self, request: GenerateRequest, index: int, *, warmup: bool) -> None:
        """Put the ids into the request."""
        request.token_ids.ids.extend(self.ids(index, warmup=warmup))

    def repeated_share(self, count: int) -> float:
        """Return the share of prompts that repeat an earlier one (short prompts can by chance)."""
        return _repeated(tuple(self.ids(index, warmup=False)) for index in range(count))


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Prompts from a file, in order, from the top again when it ends."""

    texts: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> TextPrompts:
        """Read one prompt a line, blank lines left out. Raises ValueError naming the file's fault."""
        size = path.stat().st_size
        if size > MAX_PROMPT_FILE_BYTES:
            raise ValueError(f"{path} has {size} bytes, at most {MAX_PROMPT_FILE_BYTES} are read")
        texts = tuple(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
        if not texts:
            raise ValueError(f"{path} holds no prompt")
        return cls(texts)

    def fill(self, request: GenerateRequest, index: int, *, warmup: bool) -> None:
        """Put the text into the request; warm-up takes the last ones of the file."""
        request.text = self.texts[(-1 - index if warmup else index) % len(self.texts)]

    def repeated_share(self, count: int) -> float:
        """Return the share of prompts that repeat an earlier one."""
        return _repeated(self.texts[index % len(self.texts)] for index in range(count))


def _repeated(prompts: Iterable[object]) -> float:
    count, seen = 0, set()
    for prompt in prompts:
        count += 1
        seen.add(hash(prompt))
    return (count - len(seen)) / count if count else 0.0
