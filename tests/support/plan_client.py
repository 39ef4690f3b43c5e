"""A scheduler without a queue, over real gRPC: own slot and blocks for each sequence, plans sent ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from hundredfold.internal.v1 import sequence_pb2, worker_pb2, worker_pb2_grpc
from hundredfold.rpc import PROTOCOL_VERSION, channel_options


def params(**changes: Any) -> sequence_pb2.SequenceParams:
    """Greedy unless changed, every default resolved as the door does it."""
    return sequence_pb2.SequenceParams(
        **{"max_tokens": 16, "top_p": 1.0, "repetition_penalty": 1.0} | changes
    )


@dataclass
class Tracked:
    """What is known of a sequence."""

    slot: int
    prompt: list[int]
    params: sequence_pb2.SequenceParams
    output: list[int] = field(default_factory=list)
    planned: int = 0
    """Known tokens that plans have asked for."""
    computed: int = 0
    reason: int = 0
    stop_token_id: int | None = None
    failure: sequence_pb2.Failure | None = None
    scores: list[sequence_pb2.Scores] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.reason != 0 or self.failure is not None


@dataclass
class PlanClient:
    """One Execute stream."""

    address: str
    in_flight: int = 1
    chunk: int = 1 << 30
    tracked: dict[int, Tracked] = field(default_factory=dict)
    info: worker_pb2.GetWorkerInfoResponse | None = None
    leaving: bool = False
    """Whether the worker has said that it is about to stop."""
    _step: int = 0
    _new: list[worker_pb2.NewSequence] = field(default_factory=list)
    _released: list[int] = field(default_factory=list)
    _pending: deque[worker_pb2.StepPlan] = field(default_factory=deque)

    async def __aenter__(self) -> PlanClient:
        self._channel = grpc.aio.insecure_channel(self.address, options=channel_options(64 << 20))
        self.stub: Any = worker_pb2_grpc.WorkerServiceStub(self._channel)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close()

    async def connect(self, **changes: Any) -> worker_pb2.ExecuteWelcome:
        """Shake hands; keywords replace fields of the hello."""
        self.info = await self.stub.GetWorkerInfo(worker_pb2.GetWorkerInfoRequest(), timeout=10)
        hello = {
            "protocol_version": PROTOCOL_VERSION,
            "scheduler": "test",
            "incarnation": self.info.incarnation,
            "model_fingerprint": self.info.model_fingerprint,
            "block_size": self.info.block_size,
        } | changes
        self.call = self.stub.Execute(timeout=60)
        await self.call.write(worker_pb2.ExecuteRequest(hello=worker_pb2.ExecuteHello(**hello)))
        answer = await self.read()
        return answer.welcome

    async def read(self) -> worker_pb2.ExecuteResponse:
        """The next answer; an ended stream raises its status."""
        answer = await self.call.read()
        if answer is grpc.aio.EOF:
            raise RuntimeError(f"the stream ended: {await self.call.code()} {await self.call.details()}")
        return answer

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended; waits for it."""
        try:
            while await self.call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code(), await self.call.details()

    def add(
        self,
        slot: int,
        prompt: Sequence[int],
        wanted: sequence_pb2.SequenceParams,
        output: Sequence[int] = (),
        **fields: Any,
    ) -> Tracked:
        """A sequence for the next plan."""
        assert self.info is not None
        each = self.info.num_blocks // self.info.max_num_seqs
        blocks = [i * self.info.max_num_seqs + slot for i in range(each)]
        self._new.append(
            worker_pb2.NewSequence(
                slot=slot,
                sequence_id=100 + slot,
                prompt_token_ids=prompt,
                output_token_ids=output,
                block_ids=blocks,
                params=wanted,
                **fields,
            )
        )
        tracked = self.tracked[slot] = Tracked(slot, list(prompt), wanted, list(output))
        return tracked

    def release(self, slot: int) -> None:
        """Free a slot with the next plan."""
        del self.tracked[slot]
        self._released.append(slot)

    def make_plan(self) -> worker_pb2.StepPlan:
        """Every sequence that is not known to be over advances; decodes by one token, seen or not."""
        self._step += 1
        rows = [t for t in self.tracked.values() if not t.over]
        takes = []
        for t in rows:
            left = max(1, len(t.prompt) + len(t.output) - t.planned)
            takes.append(min(left, self.chunk))
            t.planned += takes[-1]
        plan = worker_pb2.StepPlan(
            step=self._step,
            released_slots=self._released,
            new_sequences=self._new,
            slots=[t.slot for t in rows],
            num_tokens=takes,
        )
        self._new, self._released = [], []
        return plan

    async def send(self, plan: worker_pb2.StepPlan) -> None:
        self._pending.append(plan)
        await self.call.write(worker_pb2.ExecuteRequest(plan=plan))

    async def receive(self) -> worker_pb2.StepResult:
        """The result of the oldest plan; the news that the worker leaves is noted on the way."""
        answer = await self.read()
        if answer.HasField("leaving"):
            self.leaving = True
            answer = await self.read()
        result = answer.result
        plan = self._pending.popleft()
        assert result.step == plan.step
        assert len(result.num_computed_tokens) == len(result.num_output_tokens) == len(plan.slots)
        at = 0
        for slot, computed, count in zip(
            plan.slots, result.num_computed_tokens, result.num_output_tokens, strict=True
        ):
            t = self.tracked[slot]
            t.output += result.token_ids[at : at + count]
            t.computed = computed
            at += count
        assert at == len(result.token_ids)
        for end in result.ends:
            t = self.tracked[plan.slots[end.row]]
            assert not t.over
            t.reason = end.reason
            t.stop_token_id = end.stop_token_id if end.HasField("stop_token_id") else None
        for failed in result.failures:
            self.tracked[plan.slots[failed.row]].failure = failed.failure
        for scores in result.scores:
            self.tracked[plan.slots[scores.row]].scores.append(scores.scores)
        return result

    async def run(self) -> None:
        """Go on until every sequence is over and every result is in."""
        while not all(t.over for t in self.tracked.values()) or self._pending:
            while len(self._pending) < self.in_flight and not all(t.over for t in self.tracked.values()):
                await self.send(self.make_plan())
            await self.receive()
