"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar, Unpack

import grpc

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

Request = TypeVar("Request")
Response = TypeVar("Response")


class _Server:
    """One server: its channel and its stubs."""

    def __init__(self, address: str, max_message_bytes: int) -> None:
        self.channel = grpc.insecure_channel(address, options=channel_options(max_message_bytes))
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self.channel)
        self.control = control_pb2_grpc.ControlServiceStub(self.channel)


class GenerateStream(Iterable[Event]):
    """The events of one request, to be read once, by one thread.

    Leaving early cancels the request, whether by ``break``, an exception, ``close`` or dropping the stream.
    """

    def __init__(
        self,
        rota: Rota[_Server],
        session: GenerateSession,
    ) -> None:
        self._session = session
        self._events = _events(rota, session)

    def __iter__(self) -> Iterator[Event]:
        try:
            yield from self._events
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the request if it still runs."""
        self._events.close()

    def texts(self) -> Iterator[str]:
        """The pieces of the first choice's text alone."""
        for event in self:
            if isinstance(event, pb.Delta) and event.index == 0 and event.text:
                yield event.text

    def result(self) -> Answer:
        """Read to the end and return the answer."""
        for _ in self:
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


class Client:
    """Talks to a hundredfold server; safe to share between threads.

    Failed calls raise ``RequestFailed`` or one of its classes. Calls that meet no server, and streams whose
    server went away, are tried again as ``retry`` says; a resumed stream repeats nothing and loses nothing.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """Nothing is sent before the first call.

        Args:
            address: HOST:PORT, unix:/PATH or a gRPC name; several, separated by commas, take turns.
            retry: How long to keep trying.
            max_message_bytes: Largest message to send or receive.
        """
        self.address = address
        self._retry = retry
        self._rota = Rota([_Server(one, max_message_bytes) for one in addresses(address)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; running calls end."""
        for server in self._rota.servers:
            server.channel.close()

    def generate(
        self,
        text: str | None = None,
        *,
        chat: Sequence[ChatMessage] | None = None,
        token_ids: Sequence[int] | None = None,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> GenerateStream:
        """Stream the answer to exactly one of ``text``, ``chat`` and ``token_ids``.

        The request is sent when the first event is asked for. ``timeout`` is the deadline in seconds for
        all of it, waiting and resuming included.

        Raises:
            TypeError, ValueError: The arguments do not fit the contract's fields.
        """
        request = requests.generate_request(text, chat, token_ids, options)
        return GenerateStream(self._rota, GenerateSession(request, Attempts(self._retry, timeout)))

    def generate_once(
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
        return answer_from_once(self._unary(lambda server: server.generation.GenerateOnce, request, timeout))

    def abort(self, request_id: str, *, timeout: float | None = None) -> None:
        """End a running request; its stream raises ``Cancelled``. Every server is asked.

        Raises:
            NotFound: It runs at none of those that answer.
        """
        request, servers = pb.AbortRequest(request_id=request_id), self._rota.servers
        attempts = Attempts(self._retry, timeout)
        while True:
            left = attempts.remaining()
            calls = [server.generation.Abort.future(request, timeout=left) for server in servers]
            failures = []
            for server, call in zip(servers, calls, strict=True):
                try:
                    call.result()
                except grpc.RpcError as error:
                    failures.append(typed(error))
                    if isinstance(failures[-1], Unavailable):
                        self._rota.away(server)
            if len(failures) < len(servers):
                return
            time.sleep(attempts.delay_after(of_all(failures), resuming=False))

    def encode(
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
        return list(self._unary(lambda server: server.tokenizer.Encode, request, timeout).token_ids)

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool | None = None,
        model: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """The text of token ids."""
        request = requests.decode_request(token_ids, skip_special_tokens, model)
        return self._unary(lambda server: server.tokenizer.Decode, request, timeout).text

    def render_chat(
        self,
        chat: Sequence[ChatMessage],
        *,
        model: str | None = None,
        timeout: float | None = None,
        **options: Unpack[ChatOptions],
    ) -> tokenizer_pb2.RenderChatResponse:
        """The prompt that a conversation becomes, as text and as ids."""
        request = requests.render_request(chat, model, options)
        return self._unary(lambda server: server.tokenizer.RenderChat, request, timeout)

    def count_tokens(
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
        return self._unary(lambda server: server.tokenizer.CountTokens, request, timeout).count

    def info(self, *, timeout: float | None = None) -> list[control_pb2.ServiceInfo]:
        """What runs and why: the service asked first, then those behind it."""
        request = control_pb2.GetServerInfoRequest()
        return list(self._unary(lambda server: server.control.GetServerInfo, request, timeout).services)

    def load(self, *, timeout: float | None = None) -> control_pb2.GetLoadResponse:
        """How busy the service is. Raises ``ValueError`` with several servers: each has a load of its own."""
        self._rota.expect_one("load")
        return self._unary(lambda server: server.control.GetLoad, control_pb2.GetLoadRequest(), timeout)

    def drain(self, grace_s: float | None = None, *, timeout: float | None = None) -> int:
        """Have the service finish what runs and stop; returns how many requests still run.

        Raises:
            ValueError: The client has several servers, and which one to stop is not left to its turn.
        """
        self._rota.expect_one("drain")
        return self._unary(
            lambda server: server.control.Drain, requests.drain_request(grace_s), timeout
        ).running

    def _unary(
        self,
        method: Callable[[_Server], grpc.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        timeout: float | None,
    ) -> Response:
        attempts = Attempts(self._retry, timeout)
        while True:
            server = self._rota.pick()
            try:
                return method(server)(request, timeout=attempts.remaining())
            except grpc.RpcError as error:
                delay = attempts.delay_after(typed(error), resuming=False)
            self._rota.away(server)
            time.sleep(delay)


def _events(rota: Rota[_Server], session: GenerateSession) -> Generator[Event, None, None]:
    while True:
        server = rota.pick()
        call: Any = server.generation.Generate(session.next_request(), timeout=session.remaining())
        try:
            for response in call:
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
        time.sleep(delay)
