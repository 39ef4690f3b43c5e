"""Which part of a sequence a drawn token attends to, and from which length on it is not all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockChoice:
    """The knobs; lengths in tokens, so that they mean the same whatever the block size."""

    keep: float = 0.99
    """Share of a query's weight that the blocks it attends to have, as guessed; 1 for all, which is exact."""
    least: int = 512
    """Tokens that are attended to at least, as far as there are so many: shorter sequences stay exact."""
    first: int = 32
    """Tokens at the start that are attended to in any case."""
    recent: int = 64
    """Tokens before a token's own block that are attended to in any case."""

    @classmethod
    def read(cls, options: Mapping[str, str]) -> Self:
        """From NAME=VALUE options. Raises ``ValueError`` naming the option, its value and what is allowed."""
        known = [field.name for field in fields(cls)]
        values: dict[str, Any] = {}
        for name, text in options.items():
            if name not in known:
                raise ValueError(f"knows no option {name!r}, only {', '.join(known)}")
            values[name] = _share(text) if name == "keep" else _tokens(name, text)
        return cls(**values)

    def __str__(self) -> str:
        return (
            f"prompts exact, tokens that are drawn attend to the blocks that have {self.keep:.5g} of their "
            f"weight, as guessed, no less than {self.least} tokens, with the first {self.first} and the "
            f"{self.recent} before their own block"
        )

    def first_blocks(self, size: int) -> int:
        """Blocks of ``size`` tokens at the start."""
        return -(-self.first // size)

    def last_blocks(self, size: int) -> int:
        """Blocks before a token's own."""
        return -(-self.recent // size)

    def blocks(self, positions: Ints, size: int) -> Ints:
        """How many blocks, its own included, a token at ``positions`` attends to at least; 0 for all."""
        always = self.first_blocks(size) + self.last_blocks(size) + 1
        least = max(-(-self.least // size), always)
        return np.where((least < positions // size + 1) & (self.keep < 1), least, 0)

    def exact_until(self, size: int, most: int) -> int:
        """The first position below ``most`` whose token does not take all; ``most`` when there is none."""
        starts = np.arange(0, most, size)
        found = np.flatnonzero(self.blocks(starts, size))
        return int(starts[found[0]]) if len(found) else most


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"keep is {text!r}, wanted is a share above 0 and at most 1")
    return share


def _tokens(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 8:
        raise ValueError(f"{name} is {text!r}, wanted is a number of tokens below 100000000")
    return int(text)
