"""The fake worker behind a real gRPC server: it can be slow, hang, crash and return."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.internal.v1 import sequence_pb2, worker_pb2, worker_pb2_grpc
from hundredfold_scheduler.core.step import Branch, NewSequence, StepPlan, StepResult
from support.fake_worker import FakeWorker, PlanViolation

_INCARNATIONS = itertools.count(1)


@dataclass
class GrpcWorker(worker_pb2_grpc.WorkerServiceServicer, health_pb2_grpc.HealthServicer):
    """One address; ``start`` and ``stop`` are the life and death of the process behind it."""

    num_blocks: int = 256
    block_size: int = 16
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    max_draft_tokens: int = 0
    max_model_len: int = 1024
    vocab_size: int = 1000
    remembers: bool = True
    """See ``FakeWorker``."""
    fingerprint: str = "f" * 64
    protocol_version: int = 1
    ready: bool = True
    step_s: float = 0.0
    """How long a step takes."""
    delivery_s: float = 0.0
    """How much later its result is sent, while the next step runs."""
    step_us: Callable[[StepPlan, StepResult], int] = lambda plan, result: 1000
    """How long it says that a step took."""
    crashes: Callable[[StepPlan], bool] = lambda plan: False
    """Whether the process dies of a plan."""
    hangs: Callable[[StepPlan], bool] = lambda plan: False
    """Whether a plan is never answered."""
    deaf: bool = False
    """Whether calls are not answered any more, results included, as by a stopped process."""
    host: str = "127.0.0.1"
    address: str = ""
    incarnation: str = ""
    worker: FakeWorker | None = None
    plans: list[StepPlan] = field(default_factory=list)
    """All plans since the worker object was made, across incarnations."""
    violations: list[str] = field(default_factory=list)
    connections: int = 0
    _leaving: asyncio.Event = field(default_factory=asyncio.Event)
    _server: Any = None

    async def start(self) -> str:
        """Begin to listen, at the same address as before if there was one; returns it."""
        self.incarnation = f"worker-{next(_INCARNATIONS)}"
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self._leaving = asyncio.Event()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address or f"{self.host}:0")
        self.address = f"{self.host}:{port}"
        await self._server.start()
        return self.address

    async def stop(self) -> None:
        """Die: every stream breaks."""
        server, self._server = self._server, None
        self.worker = None
        if server is not None:
            await server.stop(None)

    def leave(self) -> None:
        """Begin to drain: the scheduler is told, and no scheduler gets in any more."""
        self._leaving.set()

    async def Check(  # type: ignore[override]
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> health_pb2.HealthCheckResponse:
        if self.deaf:
            await asyncio.Event().wait()
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    async def GetWorkerInfo(
        self, request: worker_pb2.GetWorkerInfoRequest, context: Any
    ) -> worker_pb2.GetWorkerInfoResponse:
        if self._leaving.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the service is draining")
        if self.deaf:
            await asyncio.Event().wait()
        return worker_pb2.GetWorkerInfoResponse(
            protocol_version=self.protocol_version,
            incarnation=self.incarnation,
            ready=self.ready,
            model_fingerprint=self.fingerprint,
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            bytes_per_block=1,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_draft_tokens=self.max_draft_tokens,
            max_draft_rows=self.max_num_seqs,
        )

    async def Execute(  # type: ignore[override] # gRPC awaits what writes by itself
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: Any
    ) -> None:
        hello = (await anext(aiter(request_iterator))).hello
        if self.worker is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another scheduler is here")
        if hello.incarnation != self.incarnation or hello.block_size != self.block_size:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "planned for another worker")
        self.connections += 1
        worker = self.worker = FakeWorker(
            self.num_blocks,
            self.block_size,
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.vocab_size,
            self.remembers,
            max_draft_tokens=self.max_draft_tokens,
        )
        welcome = worker_pb2.ExecuteWelcome(incarnation=self.incarnation)
        await context.write(worker_pb2.ExecuteResponse(welcome=welcome))
        results: asyncio.Queue[StepResult] = asyncio.Queue()
        writing = asyncio.Lock()  # a stream takes one message at a time, a second is an error
        tasks = [
            asyncio.create_task(self._deliver(results, context, writing)),
            asyncio.create_task(self._tell_leaving(context, writing)),
        ]
        try:
            async for message in request_iterator:
                plan = plan_of(message.plan)
                self.plans.append(plan)
                if self.hangs(plan) or self.deaf:
                    await asyncio.Event().wait()
                if self.crashes(plan):
                    # From outside of this handler, which the stop is going to cancel.
                    self._dying = asyncio.create_task(self.stop())
                    await asyncio.Event().wait()
                if self.step_s:
                    await asyncio.sleep(self.step_s)
                result = worker.step(plan)
                result.step_us = self.step_us(plan, result)
                results.put_nowait(result)
        except PlanViolation as violation:
            self.violations.append(str(violation))
            await context.abort(grpc.StatusCode.INTERNAL, str(violation))
        finally:
            for task in tasks:
                task.cancel()
            if self.worker is worker:
                self.worker = None

    async def _tell_leaving(self, context: Any, writing: asyncio.Lock) -> None:
        await self._leaving.wait()
        async with writing:
            await context.write(worker_pb2.ExecuteResponse(leaving=worker_pb2.ExecuteLeaving()))

    async def _deliver(self, results: asyncio.Queue[StepResult], context: Any, writing: asyncio.Lock) -> None:
        while True:
            result = await results.get()
            if self.delivery_s:
                await asyncio.sleep(self.delivery_s)
            async with writing:
                await context.write(worker_pb2.ExecuteResponse(result=result_message(result)))


def plan_of(message: worker_pb2.StepPlan) -> StepPlan:
    """A plan as it came over the wire."""
    return StepPlan(
        step=message.step,
        released_slots=list(message.released_slots),
        new_sequences=[
            NewSequence(
                slot=new.slot,
                sequence_id=new.sequence_id,
                prompt=array("I", new.prompt_token_ids),
                output=array("I", new.output_token_ids),
                block_ids=list(new.block_ids),
                num_computed_tokens=new.num_computed_tokens,
                max_tokens=new.params.max_tokens,
                params=new.params,
                prompt_is_scored=False,
                choice_index=new.choice_index,
                traceparent=new.traceparent,
                num_candidates=new.num_candidates,
            )
            for new in message.new_sequences
        ],
        branches=[
            Branch(one.slot, one.source_slot, one.token_id, one.kept_blocks, list(one.block_ids))
            for one in message.branches
        ],
        copies=[(copy.source, copy.destination) for copy in message.copies],
        grown_slots=list(message.grown_slots),
        grown_counts=list(message.grown_counts),
        grown_block_ids=list(message.grown_block_ids),
        slots=list(message.slots),
        num_tokens=list(message.num_tokens),
        num_draft_tokens=list(message.num_draft_tokens),
        num_repeats=message.num_repeats,
    )


def result_message(result: StepResult) -> worker_pb2.StepResult:
    """A result as a worker sends it."""
    message = worker_pb2.StepResult(
        step=result.step,
        num_computed_tokens=result.num_computed_tokens,
        num_output_tokens=result.num_output_tokens,
        token_ids=result.token_ids,
        num_drafted_tokens=result.num_drafted_tokens,
        num_repeats=result.num_repeats,
        step_us=result.step_us,
    )
    for end in result.ends:
        reason = sequence_pb2.EndReason.ValueType(int(end.reason))
        message.ends.add(row=end.row, reason=reason, stop_token_id=end.stop_token_id)
    for failure in result.failures:
        message.failures.add(
            row=failure.row, failure=sequence_pb2.Failure(code=failure.code, message=failure.message)
        )
    for found in result.candidates:
        message.candidates.add(
            row=found.row, token_ids=found.candidates.token_ids, logprobs=found.candidates.logprobs
        )
    return message
