"""Asks a running door, streamed and whole, and scripts what its fake scheduler says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hundredfold.internal.v1 import scheduler_pb2
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.vocabulary import Vocabulary
from support.door import Answer
from support.fake_scheduler import Script
from support.running_door import RunningDoor


async def stream(door: RunningDoor, message: pb.GenerateRequest, pause_s: float = 0.0) -> Answer:
    """The streamed answer; the reader pauses after each event."""
    answer = Answer()
    async for event in door.generation.Generate(message, timeout=30):
        assert not answer.finished, "something follows the finished event"
        answer.take(event)
        await asyncio.sleep(pause_s)
    return answer


async def once(door: RunningDoor, message: pb.GenerateRequest) -> pb.GenerateOnceResponse:
    """The whole answer."""
    reply: pb.GenerateOnceResponse = await door.generation.GenerateOnce(
        pb.GenerateOnceRequest(request=message), timeout=30
    )
    return reply


async def both(door: RunningDoor, message: pb.GenerateRequest) -> Answer:
    """The streamed answer, which has to equal the whole one in every field that does not tell time."""
    streamed, whole = await stream(door, message), await once(door, message)
    (choice,) = whole.choices
    assert choice.content.text == streamed.text
    assert list(choice.content.token_ids) == streamed.token_ids
    assert list(choice.content.logprobs) == streamed.logprobs
    (finished,) = streamed.finished
    assert choice.finished.reason == finished.reason
    assert choice.finished.usage == finished.usage
    assert choice.finished.WhichOneof("matched") == finished.WhichOneof("matched")
    assert choice.finished.stop_string == finished.stop_string
    assert choice.finished.stop_token_id == finished.stop_token_id
    return streamed


def says(
    vocabulary: Vocabulary, text: str, *more: int, **how: Any
) -> Callable[[scheduler_pb2.Submit], Script]:
    """A script that says this text, then these ids."""
    ids = [*vocabulary.encode_inside(text), *more]
    return lambda submit: Script(ids=ids, **how)


def letters(vocabulary: Vocabulary, text: str, **how: Any) -> Callable[[scheduler_pb2.Submit], Script]:
    """A script that says this text, one id per byte."""
    raw = list(vocabulary.table.raw)
    ids = [raw.index(bytes([byte])) for byte in text.encode()]
    return lambda submit: Script(ids=ids, **how)
