"""Chats and completions: from a body to streams of the door, and from their events to an answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from hundredfold.client import (
    AsyncClient,
    AsyncGenerateStream,
    ChatMessage,
    GenerateOptions,
    PromptLogprobs,
    RequestFailed,
)
from hundredfold.telemetry import ServiceMetrics
from hundredfold_gateway.endpoints.caller import add_standing, request_name, timeout_s
from hundredfold_gateway.endpoints.echo import echo_prompts
from hundredfold_gateway.errors import ApiError, from_door
from hundredfold_gateway.gate import Gate
from hundredfold_gateway.generation import Opened, opened
from hundredfold_gateway.http.bodies import json_response, read_object
from hundredfold_gateway.http.events import EventStream
from hundredfold_gateway.http.presence import while_there
from hundredfold_gateway.metrics import AnswerMeter
from hundredfold_gateway.openai.chat import ChatRequest
from hundredfold_gateway.openai.chunks import ChatChunks, Chunks, CompletionChunks
from hundredfold_gateway.openai.completion import CompletionRequest, Prompt
from hundredfold_gateway.openai.fields import param_of
from hundredfold_gateway.openai.head import Head
from hundredfold_gateway.openai.whole import whole_chat, whole_completion
from hundredfold_gateway.settings import GatewaySettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    """One request on its way.

    Attributes:
        request: As it came.
        asked: Its body.
        options: For each prompt.
        meter: Measures the answer.
    """

    request: Request
    asked: ChatRequest | CompletionRequest
    options: GenerateOptions
    meter: AnswerMeter

    def refusal(self, failure: RequestFailed) -> ApiError:
        """What the door said, in this request's words."""
        self.meter.failed(failure)
        return from_door(failure, param_of(failure.field, self.asked.names))


class Generate:
    """The two endpoints that generate.

    Args:
        client: Talks to the doors.
        gate: Counts what is in progress.
        settings: What the gateway was told.
        metrics: Where answers are counted.
    """

    def __init__(
        self, client: AsyncClient, gate: Gate, settings: GatewaySettings, metrics: ServiceMetrics
    ) -> None:
        self._client = client
        self._gate = gate
        self._settings = settings
        self._metrics = metrics

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        arrived = time.monotonic()
        asked = ChatRequest.read(await read_object(request, self._settings.max_body_bytes))
        messages = asked.prompt()
        options = self._options(request, asked)
        limit = timeout_s(request, self._settings.request_timeout_s)
        async with contextlib.AsyncExitStack() as held:
            job = self._enter(held, request, asked, options, 1, arrived)
            options["request_id"] = request_name(request)
            stream = self._open(limit, options, chat=messages)
            head, scores = Head("chatcmpl"), bool(asked.logprobs)
            opening = await held.enter_async_context(opened([stream]))
            if asked.stream:
                chunks = ChatChunks(head, scores=scores, include_usage=asked.include_usage)
                return await self._stream(held, job, opening, chunks)
            await self._read_all(job, opening)
            return await _whole(scores, lambda: whole_chat(head, stream.answer, scores=scores))

    async def completion(self, request: Request) -> Response:
        """POST /v1/completions."""
        arrived = time.monotonic()
        body = await read_object(request, self._settings.max_body_bytes)
        asked = CompletionRequest.read(body, self._settings.max_prompts)
        options = self._options(request, asked)
        limit = timeout_s(request, self._settings.request_timeout_s)
        async with contextlib.AsyncExitStack() as held:
            job = self._enter(held, request, asked, options, len(asked.prompts), arrived)
            prompts, echoes = await self._there(job, echo_prompts(self._client, asked, limit))
            name = request_name(request)
            streams = [
                self._open(limit, {**options, "request_id": f"{name}-{number}"}, prompt=prompt)
                for number, prompt in enumerate(prompts)
            ]
            head, scores = Head("cmpl"), asked.logprobs is not None
            opening = await held.enter_async_context(opened(streams))
            if asked.stream:
                chunks = CompletionChunks(
                    head, echoes, asked.choices, scores=scores, include_usage=asked.include_usage
                )
                return await self._stream(held, job, opening, chunks)
            await self._read_all(job, opening)
            answers = [stream.answer for stream in streams]
            return await _whole(scores, lambda: whole_completion(head, answers, echoes, scores=scores))

    def _open(
        self,
        limit_s: float | None,
        options: GenerateOptions,
        *,
        chat: list[ChatMessage] | None = None,
        prompt: Prompt | None = None,
    ) -> AsyncGenerateStream:
        """The stream of one prompt; what no field of the contract can hold is the client's fault."""
        text = prompt if isinstance(prompt, str) else None
        ids = prompt if isinstance(prompt, list) else None
        try:
            return self._client.generate(text, chat=chat, token_ids=ids, timeout=limit_s, **options)
        except (TypeError, ValueError) as error:
            field = str(error).partition(":")[0]
            param = param_of(field, {}) if field.isidentifier() else None
            raise ApiError(400, str(error)[:300], param=param) from None

    def _options(self, request: Request, asked: ChatRequest | CompletionRequest) -> GenerateOptions:
        options = asked.options()
        add_standing(request, options)
        return options

    def _enter(
        self,
        held: contextlib.AsyncExitStack,
        request: Request,
        asked: ChatRequest | CompletionRequest,
        options: GenerateOptions,
        prompts: int,
        arrived: float,
    ) -> _Job:
        held.enter_context(self._gate.passing(prompts))
        operation = "chat" if isinstance(asked, ChatRequest) else "text_completion"
        meter = held.enter_context(AnswerMeter(self._metrics, operation, arrived))
        return _Job(request, asked, options, meter)

    async def _there(self, job: _Job, work: Coroutine[Any, Any, T]) -> T:
        """``while_there``, with the door's refusals as ours."""
        try:
            return await while_there(job.request.receive, self._gate.cut, work)
        except RequestFailed as failure:
            raise job.refusal(failure) from None

    async def _read_all(self, job: _Job, opening: Opened) -> None:
        async def read() -> None:
            async for number, event in opening.read():
                job.meter.take(number, event)
            job.meter.complete()

        await self._there(job, read())

    async def _stream(
        self, held: contextlib.AsyncExitStack, job: _Job, opening: Opened, chunks: Chunks
    ) -> Response:
        await self._there(job, opening.settle())
        return EventStream(_objects(job, opening, chunks), held.pop_all(), self._gate.cut)


async def _objects(job: _Job, opening: Opened, chunks: Chunks) -> AsyncGenerator[dict[str, Any], None]:
    try:
        async for number, event in opening.read():
            job.meter.take(number, event)
            # The scores of a prompt come all at once, too many for the event loop to wait for.
            many = isinstance(event, PromptLogprobs)
            found = chunks.take(number, event)
            for chunk in await asyncio.to_thread(list, found) if many else found:
                yield chunk
    except RequestFailed as failure:
        raise job.refusal(failure) from None
    job.meter.complete()
    for chunk in chunks.close():
        yield chunk


async def _whole(many: bool, build: Callable[[], dict[str, Any]]) -> Response:
    """The answer as JSON; scores can be so many that the event loop must not wait for them."""
    return json_response(await asyncio.to_thread(build) if many else build())
