"""Which block holds which content: from a block's chained hash to its number."""

from __future__ import annotations

from collections.abc import Iterable


class PrefixIndex:
    """One block per content; a second block with the same content stays nameless."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._awaited: frozenset[bytes] = frozenset()
        self.num_arrived = 0
        """Contents that were awaited when they were entered, so far."""

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, digest: bytes) -> int | None:
        """The block with this content."""
        return self._blocks.get(digest)

    def add(self, digest: bytes, block: int) -> bool:
        """Enter a block; false when another block holds this content already."""
        entered = self._blocks.setdefault(digest, block) == block
        self.num_arrived += entered and digest in self._awaited
        return entered

    def await_only(self, digests: Iterable[bytes]) -> None:
        """From now on, these are what somebody waits for."""
        self._awaited = frozenset(digests)

    def remove(self, digest: bytes) -> None:
        """Forget a content."""
        del self._blocks[digest]

    def items(self) -> list[tuple[bytes, int]]:
        """All entries. O(n)."""
        return list(self._blocks.items())
