"""GenerationService: streams answers, or gives them whole, or ends them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from hundredfold.rpc import RequestError
from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import generation_pb2_grpc
from hundredfold_tokenizer.door import Caller, Door
from hundredfold_tokenizer.output.outbox import Item, Piece, PromptScores
from hundredfold_tokenizer.output.pacing import Pacer
from hundredfold_tokenizer.output.scores import ScoreWriter, TokenScore
from hundredfold_tokenizer.requests.running import RunningRequest
from hundredfold_tokenizer.validation.errors import invalid

Context = grpc.aio.ServicerContext[Any, Any]

_INLINE_ENTRIES = 2000
"""Score entries that are written at once; more of them would keep the event loop too long."""


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Answers through a ``Door``.

    Args:
        door: Admits requests.
        pacer: Spreads messages to streams.
        max_message_bytes: Largest reply.
    """

    def __init__(self, door: Door, pacer: Pacer, max_message_bytes: int) -> None:
        self._door = door
        self._pacer = pacer
        self._max_message_bytes = max_message_bytes

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        """See the contract."""
        async with self._door.open(request, _caller(context), self._pacer) as running:
            await context.write(pb.GenerateResponse(started=self._door.started(running)))
            writer = self._writer(running)
            while (item := await running.outbox.read()) is not None:
                if isinstance(item, Piece) and not item.scores:  # the usual case, once per message
                    await context.write(_delta(item))
                else:
                    await context.write(await _event(item, running, writer))

    async def GenerateOnce(
        self, request: pb.GenerateOnceRequest, context: Context
    ) -> pb.GenerateOnceResponse:
        """See the contract."""
        if request.request.HasField("resume"):
            raise invalid("request.resume", "set", "is for streams only")
        async with self._door.open(request.request, _caller(context), None) as running:
            reply = pb.GenerateOnceResponse(started=self._door.started(running))
            texts: list[list[str]] = []
            for index in range(running.request.sampling.n):
                reply.choices.add().content.index = index
                texts.append([])
            writer = self._writer(running)
            while (item := await running.outbox.read()) is not None:
                await asyncio.sleep(0)  # the whole answer is there by now, and nothing else here would wait
                event = await _event(item, running, writer)
                match event.WhichOneof("event"):
                    case "delta":
                        texts[event.delta.index].append(event.delta.text)
                        event.delta.ClearField("text")
                        reply.choices[event.delta.index].content.MergeFrom(event.delta)
                    case "prompt_logprobs":
                        reply.prompt_logprobs.CopyFrom(event.prompt_logprobs)
                    case "finished":
                        reply.choices[event.finished.index].finished.CopyFrom(event.finished)
            for choice, pieces in zip(reply.choices, texts, strict=True):
                choice.content.text = "".join(pieces)
            reply.usage.CopyFrom(running.usage)
        size = reply.ByteSize()
        if size > self._max_message_bytes:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the answer takes {size} bytes; the limit max_message_bytes is {self._max_message_bytes}",
            )
        return reply

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """See the contract."""
        self._door.abort(request.request_id)
        return pb.AbortResponse()

    def _writer(self, running: RunningRequest) -> ScoreWriter:
        table = self._door.vocabulary.table
        skips = running.request.sampling.skip_special_tokens
        return ScoreWriter(table, table.special if skips else frozenset())


def _delta(item: Piece) -> pb.GenerateResponse:
    """Tokens without scores as the contract's event."""
    event = pb.GenerateResponse()
    delta = event.delta
    delta.SetInParent()
    delta.index, delta.text = item.index, item.text
    delta.token_ids.extend(item.token_ids)
    return event


async def _event(item: Item, running: RunningRequest, writer: ScoreWriter) -> pb.GenerateResponse:
    """An item of the outbox as the contract's event."""
    if isinstance(item, Piece):
        event = _delta(item)
        if item.scores:
            event.delta.logprobs.extend(await _write(writer, item.token_ids, item.scores))
        return event
    if isinstance(item, PromptScores):
        entries = await _write(writer, running.request.prompt[1:], item.scores)
        first = pb.TokenLogprobs()  # nothing precedes the first token
        return pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(tokens=[first, *entries]))
    return pb.GenerateResponse(finished=item)


async def _write(writer: ScoreWriter, token_ids: Any, scores: list[TokenScore]) -> list[pb.TokenLogprobs]:
    entries = len(scores) * (1 + len(scores[0].top_ids)) if scores else 0
    if entries <= _INLINE_ENTRIES:
        return writer.write(token_ids, scores)
    return await asyncio.to_thread(writer.write, token_ids, scores)


def _caller(context: Context) -> Caller:
    left = context.time_remaining()
    return Caller(peer=context.peer(), time_left_s=left)
