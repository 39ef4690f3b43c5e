"""The blocks of one worker's cache: reference counts, and what a free block still holds.

Three places, and every block is in exactly one: *free* (holds nothing of use), *cached* (held by nobody, its
content kept for a later hit, least recently used first) and *used* (referenced).
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Cached blocks form an intrusive doubly linked list, so that taking the oldest, adding the newest and
    reviving any one of them are O(1).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.references = [0] * num_blocks
        self.digests: list[bytes | None] = [None] * num_blocks
        """Each block's name in the prefix index, if it has one."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._end = num_blocks
        """Sentinel of the ring: its successor is the least recently used cached block."""
        self._next = [-1] * num_blocks + [self._end]
        self._previous = [-1] * num_blocks + [self._end]
        self._num_cached = 0

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds, kept for their content."""
        return self._num_cached

    @property
    def num_used(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - len(self._free) - self._num_cached

    @property
    def num_available(self) -> int:
        """Blocks that could be taken now."""
        return len(self._free) + self._num_cached

    def take(self) -> tuple[int, bytes | None]:
        """A block with one reference, and the name of the content that was lost with it.

        The caller has seen that one is available; ``IndexError`` says that it had not.
        """
        if self._free:
            block = self._free.pop()
            self.references[block] = 1
            return block, None
        block = self._next[self._end]
        if block == self._end:
            raise IndexError("no block is available")
        self._unlink(block)
        self.references[block] = 1
        digest, self.digests[block] = self.digests[block], None
        return block, digest

    def hold(self, block: int) -> None:
        """Add a reference to a block that is used or cached; a cached one is revived with its content."""
        if self.references[block] == 0:
            self._unlink(block)
        self.references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each, in this order: of those that become cached, the first will be lost
        first.
        """
        for block in blocks:
            count = self.references[block] - 1
            if count < 0:
                raise ValueError(f"block {block} is released more often than it is held")
            self.references[block] = count
            if count:
                continue
            if self.digests[block] is None:
                self._free.append(block)
            else:
                self._link_newest(block)

    def name(self, block: int, digest: bytes) -> None:
        """Note that a used block holds content worth keeping."""
        self.digests[block] = digest

    def unname(self, block: int) -> None:
        """Note that a block's content is of no use any more."""
        if self.digests[block] is None:
            return
        self.digests[block] = None
        if self.references[block] == 0:
            self._unlink(block)
            self._free.append(block)

    def cached_blocks(self) -> list[int]:
        """Cached blocks, least recently used first. O(n)."""
        blocks = []
        block = self._next[self._end]
        while block != self._end:
            blocks.append(block)
            block = self._next[block]
        return blocks

    def free_blocks(self) -> list[int]:
        """Free blocks, in no order. O(n)."""
        return list(self._free)

    def _link_newest(self, block: int) -> None:
        last = self._previous[self._end]
        self._next[last] = block
        self._previous[block] = last
        self._next[block] = self._end
        self._previous[self._end] = block
        self._num_cached += 1

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._next[block] = self._previous[block] = -1
        self._num_cached -= 1
