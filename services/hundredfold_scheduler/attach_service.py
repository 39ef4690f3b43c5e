"""SchedulerService: the handshake with tokenizer replicas and what they say on their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from hundredfold.internal.v1 import scheduler_pb2, scheduler_pb2_grpc
from hundredfold.rpc import PROTOCOL_VERSION, RequestError
from hundredfold.telemetry import get_logger
from hundredfold_scheduler.codec import submission_of
from hundredfold_scheduler.core.request import Attachment
from hundredfold_scheduler.engine import Engine
from hundredfold_scheduler.model_agreement import ModelAgreement
from hundredfold_scheduler.replica_stream import ReplicaStream

log = get_logger(__name__)

_HELLO_S = 10.0
_MAX_NAME = 200


class AttachService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """One call per replica, for as long as it lives."""

    def __init__(
        self,
        engine: Engine,
        incarnation: str,
        model: ModelAgreement,
        max_unread_bytes: int,
        draining: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._incarnation = incarnation
        self._model = model
        self._max_unread_bytes = max_unread_bytes
        self._draining = draining
        self._streams: dict[str, ReplicaStream] = {}

    def worker_changed(self) -> None:
        """A worker came or went: every replica is told the limits."""
        for stream in self._streams.values():
            stream.welcome(self._welcome())

    async def Attach(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[scheduler_pb2.AttachRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """See the contract."""
        hello = await self._hello(request_iterator)
        stream = ReplicaStream(hello, context.write, self._welcome())
        older = self._streams.get(hello.replica)
        if older is not None:
            older.supersede()
        attachment = self._engine.attach(hello.replica, stream.notify)
        stream.outbox = attachment.outbox
        self._streams[hello.replica] = stream
        self._model.joined(hello.replica, hello.model_fingerprint)
        log.info("replica attached", replica=hello.replica)
        try:
            await stream.run(self._listen(request_iterator, attachment))
        finally:
            self._engine.detach(attachment)
            if self._streams.get(hello.replica) is stream:
                del self._streams[hello.replica]
                self._model.left(hello.replica)
            log.info("replica gone", replica=hello.replica)

    async def _hello(self, messages: AsyncIterator[scheduler_pb2.AttachRequest]) -> scheduler_pb2.AttachHello:
        """The replica's first message. Raises ``RequestError``."""
        try:
            async with asyncio.timeout(_HELLO_S):
                message = await anext(aiter(messages))
        except (StopAsyncIteration, TimeoutError):
            raise _refused("the stream has to begin with a hello") from None
        hello = message.hello
        if not message.HasField("hello"):
            raise _refused("the stream has to begin with a hello")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise _refused(
                f"the replica speaks protocol {hello.protocol_version}, this scheduler {PROTOCOL_VERSION}"
            )
        if not 0 < len(hello.replica) <= _MAX_NAME:
            raise _refused(f"the replica's name has {len(hello.replica)} characters, not 1 to {_MAX_NAME}")
        self._check_model(hello)
        return hello

    def _check_model(self, hello: scheduler_pb2.AttachHello) -> None:
        expected = self._model.expected(besides=hello.replica)
        if expected is not None and hello.model_fingerprint != expected:
            log.error(
                "replica refused: another model", replica=hello.replica, fingerprint=hello.model_fingerprint
            )
            raise _refused(
                f"the replica reads the model with fingerprint {hello.model_fingerprint[:16]}, "
                f"served is {expected[:16]}"
            )

    async def _listen(
        self, messages: AsyncIterator[scheduler_pb2.AttachRequest], attachment: Attachment
    ) -> None:
        """Do what the replica says until it ends its stream. Raises ``RequestError`` for a replica that
        misbehaves.
        """
        engine = self._engine
        async for message in messages:
            kind = message.WhichOneof("message")
            if kind == "submit":
                self._submit(message.submit, attachment)
            elif kind == "cancel":
                engine.cancel(attachment, message.cancel.stream_id)
            elif kind == "finish":
                finish = message.finish
                engine.finish(attachment, finish.stream_id, finish.index, finish.kept_tokens)
            else:
                raise RequestError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"{kind or 'an empty message'} is out of place"
                )

    def _submit(self, submit: scheduler_pb2.Submit, attachment: Attachment) -> None:
        if attachment.outbox.nbytes > self._max_unread_bytes:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the replica leaves more than max_unread_bytes = {self._max_unread_bytes} unread",
            )
        if self._draining():
            self._engine.core.drain()
        try:
            self._engine.submit(attachment, submission_of(submit))
        except ValueError as error:
            raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, str(error), field="stream_id") from None

    def _welcome(self) -> scheduler_pb2.AttachWelcome:
        limits = self._engine.limits
        return scheduler_pb2.AttachWelcome(
            incarnation=self._incarnation,
            max_model_len=limits.max_model_len if limits is not None else 0,
            vocab_size=limits.vocab_size if limits is not None else 0,
            max_cache_tokens=limits.max_cache_tokens if limits is not None else 0,
            worker_ready=self._engine.worker_ready,
            block_size=limits.block_size if limits is not None else 0,
        )


def _refused(reason: str) -> RequestError:
    return RequestError(grpc.StatusCode.FAILED_PRECONDITION, reason)
