"""Every call into a service: counted, traced, refused while draining, and its errors turned into statuses."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hundredfold.rpc.errors import RequestError, abort
from hundredfold.telemetry import get_logger
from hundredfold.telemetry.tracing import call_span

log = get_logger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_UNTOUCHED = ("/grpc.health.v1.", "/grpc.reflection.")
_ALWAYS_ANSWERED = "/hundredfold.v1.ControlService/"
_RETRY_AFTER_S = 1.0


@dataclass(slots=True, eq=False)
class CallBook:
    """The calls in progress that a drain waits for, and whether new ones are taken."""

    limit: int
    draining: bool = False
    active: int = 0
    """Calls in progress."""
    cut_off: bool = False
    """Whether the grace is over: calls that are cancelled now learn that it was us."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call ends."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    """Tasks of the calls that end by themselves; streams in both directions belong to neighbours and last."""

    def cut(self) -> None:
        """End the finite calls that are still open with a status that says why."""
        self.cut_off = True
        for task in self.tasks:
            task.cancel()

    def refusal(self) -> RequestError | None:
        """Why a new call is not taken, or ``None``."""
        if self.draining:
            return RequestError(
                grpc.StatusCode.UNAVAILABLE, "the service is draining", retry_after_s=_RETRY_AFTER_S
            )
        if self.active >= self.limit:
            return RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self.active} calls are in progress, the limit max_concurrent_rpcs is {self.limit}",
                retry_after_s=_RETRY_AFTER_S,
            )
        return None


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps each handler. A call that its client gave up ends with ``CancelledError``, which is passed on."""

    def __init__(self, book: CallBook) -> None:
        self._book = book

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """See ``grpc.aio.ServerInterceptor``."""
        method = str(handler_call_details.method)
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_UNTOUCHED):
            return handler
        counted = not method.startswith(_ALWAYS_ANSWERED)
        refusal = self._book.refusal() if counted else None
        if refusal is not None:
            return _refuse(refusal)
        return self._wrap(method, handler, counted)

    def _wrap(self, method: str, handler: Handler, counted: bool) -> Handler:
        if handler.request_streaming and handler.response_streaming:
            run = self._stream(method, handler.stream_stream, counted, None)
            return grpc.stream_stream_rpc_method_handler(
                run, handler.request_deserializer, handler.response_serializer
            )
        if handler.request_streaming:
            one = self._unary(method, handler.stream_unary, counted, None)
            return grpc.stream_unary_rpc_method_handler(
                one, handler.request_deserializer, handler.response_serializer
            )
        # Without a deserializer gRPC hands over the bytes, so that a bad message becomes our refusal.
        read = handler.request_deserializer
        if handler.response_streaming:
            run = self._stream(method, handler.unary_stream, counted, read)
            return grpc.unary_stream_rpc_method_handler(run, None, handler.response_serializer)
        one = self._unary(method, handler.unary_unary, counted, read)
        return grpc.unary_unary_rpc_method_handler(one, None, handler.response_serializer)

    def _unary(self, method: str, behaviour: Any, counted: bool, read: Any) -> Any:
        async def call(request: Any, context: Context) -> Any:
            async with _Call(self._book if counted else None, method, context, lasting=False):
                return await behaviour(request if read is None else read(request), context)

        return call

    def _stream(self, method: str, behaviour: Any, counted: bool, read: Any) -> Any:
        async def call(request: Any, context: Context) -> None:
            async with _Call(self._book if counted else None, method, context, lasting=read is None):
                answers = behaviour(request if read is None else read(request), context)
                if inspect.isasyncgen(answers):
                    async with aclosing(answers):
                        async for answer in answers:
                            await context.write(answer)
                else:
                    await answers

        return call


class _Call:
    """One call from its first to its last moment."""

    def __init__(self, book: CallBook | None, method: str, context: Context, *, lasting: bool) -> None:
        self._book = book
        self._method = method
        self._context = context
        self._lasting = lasting
        self._task: Any = asyncio.current_task()
        self._span = call_span(method, context.invocation_metadata(), lasting=lasting)

    async def __aenter__(self) -> None:
        if self._book is not None:
            self._book.active += 1
            if not self._lasting:
                self._book.tasks.add(self._task)
        self._span.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        self._span.__exit__(kind, error, trace)
        if self._book is not None:
            self._book.active -= 1
            self._book.tasks.discard(self._task)
            self._book.changed.set()
            if isinstance(error, asyncio.CancelledError) and self._book.cut_off and not self._lasting:
                # Not CANCELLED: that is an abort, and no client would go on with the request elsewhere.
                message = "the service stopped before the call was done"
                stopped = RequestError(grpc.StatusCode.UNAVAILABLE, message, retry_after_s=_RETRY_AFTER_S)
                await abort(self._context, stopped)
        # gRPC's own errors (aborted already, or the client is gone) and cancellation are left to gRPC.
        if isinstance(error, RequestError):
            await abort(self._context, error)
        if isinstance(error, DecodeError):
            message = f"not a request of {self._method}"
            await abort(self._context, RequestError(grpc.StatusCode.INVALID_ARGUMENT, message))
        if isinstance(error, Exception) and not isinstance(error, grpc.aio.BaseError):
            # Someone has to find this one in the log, and nobody may read our inside from a status.
            error_id = secrets.token_hex(4)
            log.exception("call failed", method=self._method, error_id=error_id)
            message = f"internal error {error_id}; the server's log says more"
            await abort(self._context, RequestError(grpc.StatusCode.INTERNAL, message))


def _refuse(error: RequestError) -> Handler:
    async def call(requests: Any, context: Context) -> None:
        await abort(context, error)

    # A stream in both directions: it answers before the request has been read.
    return grpc.stream_stream_rpc_method_handler(call)
