"""WorkerService: who may plan for this worker, and the way of plans down and results up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from hundredfold.internal.v1 import worker_pb2, worker_pb2_grpc
from hundredfold.rpc import PROTOCOL_VERSION, RequestError
from hundredfold.telemetry import get_logger, recording
from hundredfold_worker.codec import plan_of, result_message
from hundredfold_worker.engine.slots import EngineLimits
from hundredfold_worker.failures import BrokenPlan
from hundredfold_worker.session import Inbox, Leaving, Session

log = get_logger(__name__)

_HELLO_S = 10.0
_LEAVING = worker_pb2.ExecuteResponse(leaving=worker_pb2.ExecuteLeaving())


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a scheduler has to know, once the worker is ready."""

    model_fingerprint: str
    limits: EngineLimits
    bytes_per_block: int


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers while the model still loads; serves one scheduler at a time."""

    def __init__(self, incarnation: str, inbox: Inbox) -> None:
        self._incarnation = incarnation
        self._inbox = inbox
        self._session: Session | None = None
        self._leaving = False
        self.facts: WorkerFacts | None = None
        """Set by the device thread when the worker is ready."""

    @property
    def session(self) -> Session | None:
        """The scheduler that is connected."""
        return self._session

    def leave(self) -> None:
        """A drain begins: the scheduler is told to bring nothing new, also one that comes at this moment."""
        self._leaving = True
        if self._session is not None:
            self._session.leave()

    async def GetWorkerInfo(
        self,
        request: worker_pb2.GetWorkerInfoRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> worker_pb2.GetWorkerInfoResponse:
        """See the contract."""
        facts = self.facts
        info = worker_pb2.GetWorkerInfoResponse(
            protocol_version=PROTOCOL_VERSION, incarnation=self._incarnation, ready=facts is not None
        )
        if facts is not None:
            info.model_fingerprint = facts.model_fingerprint
            info.max_model_len = facts.limits.max_model_len
            info.vocab_size = facts.limits.vocab_size
            info.block_size = facts.limits.block_size
            info.num_blocks = facts.limits.num_blocks
            info.bytes_per_block = facts.bytes_per_block
            info.max_num_seqs = facts.limits.max_num_seqs
            info.max_num_batched_tokens = facts.limits.max_num_batched_tokens
            info.max_draft_tokens = facts.limits.max_draft_tokens
            info.max_draft_rows = facts.limits.max_draft_rows
            info.sliding_window = facts.limits.sliding_window or 0
        return info

    async def Execute(
        self,
        request_iterator: AsyncIterator[worker_pb2.ExecuteRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """See the contract. However the stream ends, the sequences and the cache's content end with it."""
        hello = await _hello(request_iterator)
        self._check(hello)
        session = self._session = Session(self._inbox)
        if self._leaving:
            session.leave()
        reader = asyncio.create_task(_read(request_iterator, session))
        log.info("scheduler connected", scheduler=hello.scheduler)
        try:
            yield worker_pb2.ExecuteResponse(welcome=worker_pb2.ExecuteWelcome(incarnation=self._incarnation))
            while True:
                answer = await session.next_answer()
                yield _LEAVING if isinstance(answer, Leaving) else result_message(answer)
        except BrokenPlan as broken:
            raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, f"broken plan: {broken}") from broken
        except _SchedulerLeft:
            return
        finally:
            reader.cancel()
            session.close()
            self._session = None
            log.info("scheduler gone", scheduler=hello.scheduler)

    def _check(self, hello: worker_pb2.ExecuteHello) -> None:
        facts = self.facts
        if facts is None:
            raise RequestError(
                grpc.StatusCode.UNAVAILABLE, "the worker is still loading its model", retry_after_s=1.0
            )
        for field, theirs, ours in (
            ("protocol_version", hello.protocol_version, PROTOCOL_VERSION),
            ("incarnation", hello.incarnation, self._incarnation),
            ("model_fingerprint", hello.model_fingerprint, facts.model_fingerprint),
            ("block_size", hello.block_size, facts.limits.block_size),
        ):
            if theirs != ours:
                message = f"{field} is {str(theirs)[:80]!r}, this worker's is {ours!r}"
                raise RequestError(grpc.StatusCode.FAILED_PRECONDITION, message, field=f"hello.{field}")
        if self._session is not None:
            raise RequestError(
                grpc.StatusCode.FAILED_PRECONDITION, "another scheduler is connected to this worker"
            )


class _SchedulerLeft(Exception):
    """The scheduler closed its side."""


async def _hello(requests: AsyncIterator[worker_pb2.ExecuteRequest]) -> worker_pb2.ExecuteHello:
    try:
        first = await asyncio.wait_for(anext(requests), _HELLO_S)
    except TimeoutError:
        raise RequestError(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello came within {_HELLO_S:g} s"
        ) from None
    except StopAsyncIteration:
        raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, "the stream ended before its hello") from None
    if first.WhichOneof("message") != "hello":
        raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, "the first message has to be hello")
    return first.hello


async def _read(requests: AsyncIterator[worker_pb2.ExecuteRequest], session: Session) -> None:
    """Take plans as long as there is room; what ends this ends the session."""
    try:
        while True:
            await session.room()
            request = await anext(requests)
            if request.WhichOneof("message") != "plan":
                kind = request.WhichOneof("message") or "nothing"
                raise BrokenPlan(f"a message after hello has to be a plan, not {kind}")
            session.plan(plan_of(request.plan), _traceparents(request.plan))
    except StopAsyncIteration:
        session.fail(_SchedulerLeft())
    except Exception as error:
        session.fail(error)


def _traceparents(plan: worker_pb2.StepPlan) -> dict[int, str]:
    return {new.slot: new.traceparent for new in plan.new_sequences} if recording() else {}
