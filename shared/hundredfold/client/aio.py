"""The asyncio client."""

# ruff: noqa: ASYNC109  # the timeout is the deadline that travels to the server, no local timer

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack

import grpc
import grpc.aio

from hundredfold.client import requests
from hundredfold.client.answer import Answer, answer_from_once
from hundredfold.client.defaults import DEFAULT_ADDRESS, DEFAULT_MAX_MESSAGE_BYTES
from hundredfold.client.errors import Unavailable, of_all, typed
from hundredfold.client.options import ChatMessage, ChatOptions, GenerateOptions
from hundredfold.client.retry import Attempts, RetryPolicy
from hundredfold.client.rota import Rota, addresses
from hundredfold.client.session import Event, GenerateSession
from hundredfold.rpc.options import channel_options
from hundredfold.v1 import (
    control_pb2,
    control_pb2_grpc,
    generation_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from hundredfold.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from hundredfold.v1.control_pb2_grpc import ControlServiceAsyncStub
    from hundredfold.v1.generation_pb2_grpc import GenerationServiceAsyncStub
    from hundredfold.v1.tokenizer_pb2_grpc import TokenizerServiceAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")
Metadata: TypeAlias = Callable[[], Sequence[tuple[str, str]]]


class _Server:
    """One server: its channel and its stubs."""

    def __init__(self, address: str, max_message_bytes: int) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=channel_options(max_message_bytes))
        # The generated stubs serve both APIs; only their type stubs tell them apart.
        self.generation: GenerationServiceAsyncStub = generation_pb2_grpc.GenerationServiceStub(self.channel)  # type: ignore[assignment]
        self.tokenizer: TokenizerServiceAsyncStub = tokenizer_pb2_grpc.TokenizerServiceStub(self.channel)  # type: ignore[assignment]
        self.control: ControlServiceAsyncStub = control_pb2_grpc.ControlServiceStub(self.channel)  # type: ignore[assignment]


class AsyncGenerateStream(AsyncIterable[Event]):
    """The events of one request, to be read once, by one task.

    Leaving early cancels the request, whether by ``break``, an exception, ``close`` or dropping the stream.
    """

    def __init__(
        self,
        rota: Rota[_Server],
        session: GenerateSession,
        metadata: Metadata,
    ) -> None:
        self._session = session
        self._events = _events(rota, session, metadata)

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            async for event in self._events:
                yield event
        finally:
            await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the request if it still runs."""
        await self._events.aclose()

    async def texts(self) -> AsyncIterator[str]:
        """The pieces of the first choice's text alone."""
        async for event in self:
            if isinstance(event, pb.Delta) and event.index == 0 and event.text:
                yield event.text

    async def result(self) -> Answer:
        """Read to the end and return the answer."""
        async for _ in self:
            pass
        return self.answer

    @property
    def answer(self) -> Answer:
        """What has arrived so far."""
        return self._session.answer()

    @property
    def request_id(self) -> str:
        """The id under which the server runs the request now, for ``abort``; empty before it has started."""
        return self._session.request_id

    @property
    def resumes(self) -> int:
        """How many times a lost connection was made good."""
        return self._session.resumes


class AsyncClient:
    """Talks to a hundredfold server; is made and used on one running event loop.

    Failed calls raise ``RequestFailed`` or one of its classes. Calls that meet no server, and streams whose
    server went away, are tried again as ``retry`` says; a resumed stream repeats nothing and loses nothing.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        metadata: Metadata = tuple,
    ) -> None:
        """Nothing is sent before the first call.

        Args:
            address: HOST:PORT, unix:/PATH or a gRPC name; several, separated by commas, take turns.
            retry: How long to keep trying.
            max_message_bytes: Largest message to send or receive.
            metadata: Gives what goes with a call beside its message, such as a ``traceparent``; asked at
                each.
        """
        asyncio.get_running_loop()  # grpc would quietly bind to a loop that never runs
        self.address = address
        self._retry = retry
        self._metadata = metadata
        self._rota = Rota([_Server(one, max_message_bytes) for one in addresses(address)])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; running calls end."""
        await asyncio.gather(*(server.channel.close() for server in self._rota.servers))

    def generate(
        self,
        text: str | None = None,
        *,
        chat: Sequence[ChatMessage] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerateStream:
        """Stream the answer to exactly one of ``text``, ``chat`` and ``token_ids``.

        The request is sent when the first event is asked for. ``timeout`` is the deadline in seconds for
        all of it, waiting and resuming included.

        Raises:
            TypeError, ValueError: The arguments do not fit the contract's fields.
        """
        request = requests.generate_request(text, chat, token_ids, options)
        return AsyncGenerateStream(
            self._rota, GenerateSession(request, Attempts(self._retry, timeout)), self._metadata
        )

    async def generate_once(
        self,
        text: str | None = None,
        *,
        chat: Sequence[ChatMessage] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """The whole answer in one message; arguments as for ``generate``."""
        request = pb.GenerateOnceRequest(request=requests.generate_request(text, chat, token_ids, options))
        return answer_from_once(
            await self._unary(lambda server: server.generation.GenerateOnce, request, timeout)
        )

    async def abort(self, request_id: str, *, timeout: float | None = None) -> None:
        """End a running request; its stream raises ``Cancelled``. Every server is asked.

        Raises:
            NotFound: It runs at none of those that answer.
        """
        request, servers = pb.AbortRequest(request_id=request_id), self._rota.servers
        attempts = Attempts(self._retry, timeout)
        while True:
            left = attempts.remaining()
            calls = [server.generation.Abort(request, timeout=left) for server in servers]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            failures = []
            for server, answer in zip(servers, answers, strict=True):
                if isinstance(answer, grpc.RpcError):
                    failures.append(typed(answer))
                    if isinstance(failures[-1], Unavailable):
                        self._rota.away(server)
                elif isinstance(answer, BaseException):
                    raise answer
            if len(failures) < len(servers):
                return
            await asyncio.sleep(attempts.delay_after(of_all(failures), resuming=False))

    async def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool | None = None,
        parse_special: bool | None = None,
        model: str | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """The token ids of a text."""
        request = requests.encode_request(text, add_special_tokens, parse_special, model)
        return list((await self._unary(lambda server: server.tokenizer.Encode, request, timeout)).token_ids)

    async def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool | None = None,
        model: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """The text of token ids."""
        request = requests.decode_request(token_ids, skip_special_tokens, model)
        return (await self._unary(lambda server: server.tokenizer.Decode, request, timeout)).text

    async def render_chat(
        self,
        chat: Sequence[ChatMessage],
        *,
        model: str | None = None,
        timeout: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> tokenizer_pb2.RenderChatResponse:
        """The prompt that a conversation becomes, as text and as ids."""
        request = requests.render_request(chat, model, options)
        return await self._unary(lambda server: server.tokenizer.RenderChat, request, timeout)

    async def count_tokens(
        self,
        text: str | None = None,
        *,
        chat: Sequence[ChatMessage] | None = None,
        add_special_tokens: bool | None = None,
        model: str | None = None,
        timeout: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> int:
        """The length of a prompt in tokens, as ``generate`` would see it."""
        request = requests.count_request(text, chat, add_special_tokens, model, options)
        return (await self._unary(lambda server: server.tokenizer.CountTokens, request, timeout)).count

    async def info(self, *, timeout: float | None = None) -> list[control_pb2.ServiceInfo]:
        """What runs and why: the service asked first, then those behind it."""
        request = control_pb2.GetServerInfoRequest()
        return list(
            (await self._unary(lambda server: server.control.GetServerInfo, request, timeout)).services
        )

    async def load(self, *, timeout: float | None = None) -> control_pb2.GetLoadResponse:
        """How busy the service is. Raises ``ValueError`` with several servers: each has a load of its own."""
        self._rota.expect_one("load")
        return await self._unary(lambda server: server.control.GetLoad, control_pb2.GetLoadRequest(), timeout)

    async def drain(self, grace_s: float | None = None, *, timeout: float | None = None) -> int:
        """Have the service finish what runs and stop; returns how many requests still run.

        Raises:
            ValueError: The client has several servers, and which one to stop is not left to its turn.
        """
        self._rota.expect_one("drain")
        return (
            await self._unary(lambda server: server.control.Drain, requests.drain_request(grace_s), timeout)
        ).running

    async def _unary(
        self,
        method: Callable[[_Server], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        timeout: float | None,
    ) -> Response:
        attempts = Attempts(self._retry, timeout)
        while True:
            server = self._rota.pick()
            try:
                return await method(server)(request, timeout=attempts.remaining(), metadata=self._metadata())
            except grpc.RpcError as error:
                delay = attempts.delay_after(typed(error), resuming=False)
            self._rota.away(server)
            await asyncio.sleep(delay)


async def _events(
    rota: Rota[_Server], session: GenerateSession, metadata: Metadata
) -> AsyncGenerator[Event, None]:
    while True:
        server = rota.pick()
        call: Any = server.generation.Generate(
            session.next_request(), timeout=session.remaining(), metadata=metadata()
        )
        try:
            async for response in call:
                event = session.accept(response)
                if event is not None:
                    yield event
            if session.complete:
                return
            delay = session.ended()
        except grpc.RpcError as error:
            if session.complete:
                return
            delay = session.failed(error)
        finally:
            call.cancel()
        rota.away(server)
        await asyncio.sleep(delay)
