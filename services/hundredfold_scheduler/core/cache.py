"""The cache of one worker incarnation as sequences see it: match a prefix, grow, confirm, release."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter

from hundredfold_scheduler.core.block_hash import BlockHasher
from hundredfold_scheduler.core.block_pool import BlockPool
from hundredfold_scheduler.core.prefix_index import PrefixIndex
from hundredfold_scheduler.core.request import Sequence


class Cache:
    """Joins the pool of blocks with the index of their content, and keeps each sequence's block table."""

    def __init__(self, num_blocks: int, hasher: BlockHasher, sliding_window: int | None = None) -> None:
        self.block_size = hasher.block_size
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex()
        self.promised = 0
        """Blocks set aside for the prompts of running sequences, not taken yet."""
        self._hasher = hasher
        self._window = sliding_window
        """Tokens that a token sees in every layer, itself included; ``None`` when some layer sees all."""

    @property
    def num_unpromised(self) -> int:
        """Blocks that a new sequence could take without another's prompt coming to a halt."""
        return self.pool.num_available - self.promised

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[int]:
        """Blocks that hold the sequence's leading tokens now. At least one token is left to be computed,
        since nothing is sampled without. Takes no reference: what is done with the answer is done at once.
        """
        if sequence.request.submission.skip_prefix_cache and sequence.scored_to < sequence.prompt_len:
            return []
        hits = []
        for number in range((sequence.total - 1) // self.block_size):
            block = self.index.find(self._hash(sequence, number))
            if block is None:
                break
            hits.append(block)
        return hits

    def first_missing(self, sequence: Sequence) -> bytes | None:
        """The content that would let the sequence share a block more; ``None`` when it shares all it can."""
        shared = len(self.match(sequence))
        if sequence.request.submission.skip_prefix_cache or shared >= (sequence.total - 1) // self.block_size:
            return None
        return self._hash(sequence, shared)

    def knows(self, sequence: Sequence) -> bool:
        """Whether the sequence's first block is here. O(1)."""
        if sequence.total <= self.block_size or sequence.request.submission.skip_prefix_cache:
            return False
        return self.index.find(self._hash(sequence, 0)) is not None

    def revived(self, sequence: Sequence, hits: list[int]) -> int:
        """How many of these leading blocks nobody holds at present and the sequence would: those that its
        window hides it gives back at once.
        """
        references = self.pool.references
        first = self._unseen(sequence, len(hits) * self.block_size)
        return sum(references[block] == 0 for block in hits[first:])

    def adopt(self, sequence: Sequence, hits: list[int], promised: int) -> None:
        """Begin a block table with shared blocks, and set blocks aside for the rest of the prompt."""
        for block in hits:
            self.pool.hold(block)
        sequence.blocks = list(hits)
        sequence.capacity = sequence.computed = sequence.reserved = len(hits) * self.block_size
        sequence.next_full = sequence.capacity + self.block_size
        sequence.promised = promised
        self.promised += promised
        self._drop_unseen(sequence)

    def room(self, sequence: Sequence) -> int:
        """Tokens that the sequence's table could hold if it took every available block."""
        return sequence.capacity + self.pool.num_available * self.block_size

    def grow(self, sequence: Sequence, num_tokens: int, leave: int = 0) -> bool:
        """Make the table hold ``num_tokens`` and leave so many blocks untouched; false, with nothing changed,
        when blocks are too few.
        """
        missing = self.blocks_for(num_tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        pool = self.pool
        if missing > pool.num_available - leave:
            return False
        for _ in range(missing):
            block, lost = pool.take()
            if lost is not None:
                self.index.remove(lost)
            sequence.blocks.append(block)
        sequence.capacity += missing * self.block_size
        if sequence.promised:
            kept = min(missing, sequence.promised)
            sequence.promised -= kept
            self.promised -= kept
        return True

    def branch(self, child: Sequence, parent: Sequence) -> list[int]:
        """Give a beam that holds nothing the table of another: full blocks shared, and a block of its own for
        what the last one holds so far, which is returned. The caller has seen that one is available.
        """
        size = self.block_size
        full, partial = divmod(parent.computed, size)
        child.blocks = parent.blocks[:full]
        for block in child.blocks:
            self.pool.hold(block)
        own: list[int] = []
        if partial:
            block, lost = self.pool.take()
            if lost is not None:
                self.index.remove(lost)
            own.append(block)
        child.blocks += own
        child.capacity = len(child.blocks) * size
        child.computed = child.reserved = parent.computed
        child.next_full = parent.next_full
        child.told_blocks = len(child.blocks)
        child.hashes = {hasher: list(hashes) for hasher, hashes in parent.hashes.items()}
        return own

    def confirm(self, sequence: Sequence) -> None:
        """Enter into the index every block whose tokens a good result has confirmed. For when ``computed``
        has reached ``next_full``.
        """
        size = self.block_size
        first = sequence.next_full // size - 1
        last = sequence.computed // size
        for number in range(first, last):
            block = sequence.blocks[number]
            digest = self._hash(sequence, number)
            if self.index.add(digest, block):
                self.pool.name(block, digest)
        sequence.next_full = (last + 1) * size
        self._drop_unseen(sequence)

    def _unseen(self, sequence: Sequence, computed: int) -> int:
        """Leading blocks that no token from ``computed`` on can see."""
        if self._window is None or sequence.beams is not None:
            return 0
        return max(0, (computed - self._window + 1) // self.block_size)

    def _drop_unseen(self, sequence: Sequence) -> None:
        """Give back the blocks that no token to come can see. Steps in flight begin at ``computed`` or after,
        so they see none of them either; the table keeps the numbers, for places in it do not move.
        """
        unseen = self._unseen(sequence, sequence.computed)
        if unseen > sequence.unseen:
            self.pool.release(reversed(sequence.blocks[sequence.unseen : unseen]))
            sequence.unseen = unseen

    def release(self, sequence: Sequence) -> None:
        """Give the table back, its tail first: beginnings are what others share, so they stay longest."""
        self.pool.release(reversed(sequence.blocks[sequence.unseen :]))
        self.promised -= sequence.promised
        sequence.blocks = []
        sequence.capacity = sequence.promised = sequence.told_blocks = sequence.unseen = 0

    def num_exclusive(self, sequence: Sequence) -> int:
        """Computed tokens that would have to be computed again if the sequence gave its table back now: those
        in blocks that nobody else holds, or all if it does not read the cache. O(log blocks): what is shared
        comes first.
        """
        if sequence.request.submission.skip_prefix_cache:
            return sequence.computed
        references, blocks = self.pool.references, sequence.blocks
        held = range(sequence.unseen, len(blocks))
        shared = sequence.unseen + bisect_left(held, True, key=lambda number: references[blocks[number]] < 2)
        return max(0, sequence.computed - shared * self.block_size)

    def num_exclusive_of(self, beams: list[Sequence]) -> int:
        """The same for the beams of a group, which give their tables back together: what they share among
        each other is lost all the same, and computed once. O(blocks).
        """
        size, references = self.block_size, self.pool.references
        everything = beams[0].request.submission.skip_prefix_cache
        held = Counter(block for beam in beams for block in beam.blocks)
        filled = {
            block: max(0, min(size, beam.computed - number * size))
            for beam in beams
            for number, block in enumerate(beam.blocks)
        }
        return sum(filled[block] for block in held if everything or references[block] == held[block])

    def distrust(self, sequence: Sequence) -> None:
        """Take a failed sequence's content out of the index, whoever holds it: what made the sequence fail
        may lie in any of its blocks.
        """
        for digest in sequence.hashes.get(self._hasher, ())[1:]:
            block = self.index.find(digest)
            if block is not None:
                self.index.remove(digest)
                self.pool.unname(block)

    def _hash(self, sequence: Sequence, number: int) -> bytes:
        """The hash of the sequence's block ``number``, whose tokens are all known."""
        hashes = sequence.hashes.get(self._hasher)
        if hashes is None:
            submission = sequence.request.submission
            root = self._hasher.root(submission.adapter, submission.cache_salt)
            hashes = sequence.hashes[self._hasher] = [root]
        size = self.block_size
        tokens: array[int] = sequence.tokens
        while len(hashes) <= number + 1:
            start = (len(hashes) - 1) * size
            hashes.append(self._hasher.block(hashes[-1], tokens[start : start + size]))
        return hashes[number + 1]
