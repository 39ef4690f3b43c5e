"""What one client has yet to read: tokens gathered into pieces, events between them, bounded together with
all others.

Whoever produces never waits. Whoever reads takes a piece at a time and so merges what came meanwhile; a piece
stays small enough for any client's message limit and for a turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hundredfold.rpc import RequestError
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.output.pacing import Pacer
from hundredfold_tokenizer.output.scores import TokenScore
from hundredfold_tokenizer.output.unread import UnreadBudget

PIECE_TOKENS = 512
"""Most tokens in one piece; with scores fewer, so that a piece stays at about this many entries."""

_TOKEN_BYTES = 6
_PIECE_BYTES = 300


@dataclass(slots=True)
class Piece:
    """A run of tokens of one choice."""

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    num_bytes: int = _PIECE_BYTES

    @property
    def text(self) -> str:
        """Its text."""
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The scores of the prompt: one entry per token but the first."""

    scores: list[TokenScore]

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return sum(score.num_bytes for score in self.scores)


Item = Piece | PromptScores | pb.Finished


class Outbox:
    """One request's unread output, in order. Belongs to the event loop.

    Args:
        budget: Bound on the unread output of all requests.
        pacer: Says when the reader is to be woken; None wakes it only for the last item.
        width: Rivals per score, to size the pieces.
        choices: Choices that share it; each is a stream of messages of its own.
    """

    __slots__ = (
        "_budget", "_choices", "_closed", "_due_items", "_error", "_items", "_open", "_pacer",
        "_piece_tokens", "_waiter", "due", "last_read", "num_bytes", "scheduled",
    )  # fmt: skip

    def __init__(
        self, budget: UnreadBudget, pacer: Pacer | None, width: int | None, choices: int = 1
    ) -> None:
        self._budget = budget
        self._pacer = pacer
        self._piece_tokens = PIECE_TOKENS if width is None else max(16, PIECE_TOKENS // (width + 1))
        self._items: deque[Item] = deque()
        self._open: dict[int, Piece] = {}
        """The piece of each choice that may still grow; all are among the items."""
        self._due_items = 0
        """Items that the reader may take now without a rest between them."""
        self._choices = choices
        self._waiter: asyncio.Future[None] | None = None
        self._error: RequestError | None = None
        self._closed = False
        self.num_bytes = 0
        self.last_read = float("-inf")
        self.due = 0.0
        self.scheduled = False
        if pacer is not None:
            pacer.streams += choices

    def put_tokens(
        self, index: int, text: str, token_ids: Sequence[int], scores: Sequence[TokenScore]
    ) -> None:
        """Tokens of a choice, with one score each or none at all."""
        last = self._open.get(index)
        if last is not None and len(last.token_ids) + len(token_ids) <= self._piece_tokens:
            self._extend(last, text, token_ids, scores)  # the usual case, once per stream and step
        else:
            self._split(index, text, token_ids, scores)
        if self._waiter is not None and not self.scheduled and self._pacer is not None:
            self._pacer.offer(self)  # a reader that is busy looks again by itself

    def put(self, item: PromptScores | pb.Finished) -> None:
        """Something that is not to wait."""
        self._items.append(item)
        if isinstance(item, PromptScores):
            self._grow(item.num_bytes)
        else:
            self._open.pop(item.index, None)
        if self._pacer is not None:
            self.wake()

    def end(self, error: RequestError | None = None) -> None:
        """Nothing follows. With an error, what is unread is dropped and the reader gets the error, even if
        the end was there before it: else nothing could free what a reader leaves.
        """
        if self._closed and error is None:
            return
        self._closed = True
        if error is not None:
            self._error = error
            self.drop()
        self.wake()

    def drop(self) -> None:
        """Forget what is unread."""
        self._items.clear()
        self._open.clear()
        self._due_items = 0
        self._budget.change(-self.num_bytes)
        self.num_bytes = 0

    def leave(self) -> None:
        """The reader is gone for good."""
        self._closed = True
        self.drop()
        self._budget.leave(self)
        if self._pacer is not None:
            self._pacer.streams -= self._choices

    async def read(self) -> Item | None:
        """The next item, or None at the end.

        Raises:
            RequestError: The request failed.
        """
        while not self._may_read():
            self._waiter = asyncio.get_running_loop().create_future()
            if self._items and self._pacer is not None:
                self._pacer.offer(self)
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._error is not None:
            raise self._error
        if not self._items:
            return None
        item = self._items.popleft()
        self._due_items = max(0, self._due_items - 1)
        if isinstance(item, Piece) and self._open.get(item.index) is item:
            del self._open[item.index]
        if self._pacer is not None:
            self.last_read = self._pacer.now()
        size = 0 if isinstance(item, pb.Finished) else item.num_bytes
        self.num_bytes -= size
        self._budget.change(-size)
        return item

    def wake(self) -> None:
        """Let the reader go on, if it waits."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def waiting(self) -> bool:
        """Whether the reader waits to be woken."""
        return self._waiter is not None and not self._waiter.done()

    def _may_read(self) -> bool:
        if self._closed:
            return True
        if not self._items or self._pacer is None:
            return False
        if self._due_items:
            return True
        # An item that nothing is added to need not wait: the reader is behind.
        if len(self._items) > len(self._open) or self._pacer.is_due(self):
            self._due_items = len(self._items)
            return True
        return False

    def _split(self, index: int, text: str, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> None:
        """Spread tokens over as many pieces as they need; their text goes with the last.

        A client that is cut off between two pieces may hold ids without their text and resume; with more text
        than its ids make it would be refused.
        """
        start = 0
        while start < len(token_ids) or text:
            piece = self._open_piece(index)
            end = start + self._piece_tokens - len(piece.token_ids)
            said, text = (text, "") if end >= len(token_ids) else ("", text)
            self._extend(piece, said, token_ids[start:end], scores[start:end])
            start = end

    def _extend(
        self, piece: Piece, text: str, token_ids: Sequence[int], scores: Sequence[TokenScore]
    ) -> None:
        size = _TOKEN_BYTES * len(token_ids) + 2 * len(text)
        piece.token_ids.extend(token_ids)
        if text:
            piece.texts.append(text)
        if scores:
            piece.scores.extend(scores)
            size += sum(score.num_bytes for score in scores)
        piece.num_bytes += size
        self.num_bytes += size
        self._budget.num_bytes += size

    def _open_piece(self, index: int) -> Piece:
        last = self._open.get(index)
        if last is not None and len(last.token_ids) < self._piece_tokens:
            return last
        piece = self._open[index] = Piece(index)
        self._items.append(piece)
        self._grow(piece.num_bytes)
        return piece

    def _grow(self, size: int) -> None:
        self.num_bytes += size
        self._budget.change(size)
