"""A whole answer is put together a piece at a time: the event loop serves others in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.generation import GenerationServicer
from hundredfold_tokenizer.output.outbox import PIECE_TOKENS, Outbox
from hundredfold_tokenizer.output.pacing import Pacer
from hundredfold_tokenizer.output.unread import UnreadBudget
from hundredfold_tokenizer.vocabulary import Vocabulary

PIECES = 20


class OneAnswer:
    """Stands for the door: one request, whose answer is complete."""

    def __init__(self, vocabulary: Vocabulary, outbox: Outbox) -> None:
        self.vocabulary = vocabulary
        self._outbox = outbox

    @asynccontextmanager
    async def open(self, *_: object) -> AsyncIterator[Any]:
        """The request."""
        request = SimpleNamespace(sampling=SimpleNamespace(skip_special_tokens=True, n=1))
        yield SimpleNamespace(outbox=self._outbox, request=request, usage=pb.Usage())

    def started(self, _: object) -> pb.Started:
        """Its terms."""
        return pb.Started()


async def test_a_large_answer_leaves_turns_to_others(bpe: Vocabulary) -> None:
    outbox = Outbox(UnreadBudget(10**9), None, None)
    count = PIECES * PIECE_TOKENS
    outbox.put_tokens(0, "x" * count, [65] * count, [])
    outbox.put(pb.Finished(index=0))
    outbox.end()
    door: Any = OneAnswer(bpe, outbox)
    context: Any = SimpleNamespace(peer=lambda: "unix:", time_remaining=lambda: None)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    servicer = GenerationServicer(door, Pacer(1000, 0), 10**8)
    reply = await servicer.GenerateOnce(pb.GenerateOnceRequest(), context)
    task.cancel()
    assert turns >= PIECES
    assert len(reply.choices[0].content.token_ids) == len(reply.choices[0].content.text) == count
