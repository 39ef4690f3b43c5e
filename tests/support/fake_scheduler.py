"""A scheduler without a model: a real gRPC SchedulerService that plays scripted ids, and can die and come
back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from hundredfold.internal.v1 import scheduler_pb2 as pb
from hundredfold.internal.v1 import scheduler_pb2_grpc, sequence_pb2

OPTIONS = [
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.so_reuseport", 0),
]
STOP, LENGTH = sequence_pb2.END_REASON_STOP, sequence_pb2.END_REASON_LENGTH


@dataclass
class Script:
    """What one request gets.

    Attributes:
        ids: Its output ids; cut to its max_tokens, or at a stop id as a worker would.
        step: Ids per message.
        delay_s: Most seconds between messages; each waits a random share of it.
        hang_after: Say nothing more after so many ids.
        failure: End with this instead.
        scores: Scores per token, as (logprob, rank, [(id, logprob), …]).
        raw: Messages to send as they are instead, whatever they hold.
    """

    ids: Sequence[int] = ()
    step: int = 1
    delay_s: float = 0.0
    hang_after: int | None = None
    failure: sequence_pb2.Failure | None = None
    scores: Callable[[int, int], tuple[float, int, list[tuple[int, float]]]] | None = None
    raw: Sequence[pb.Outputs] = ()


def echo(submit: pb.Submit) -> Script:
    """The prompt again and again."""
    prompt = list(submit.prompt_token_ids)
    return Script(ids=(prompt * (submit.params.max_tokens // len(prompt) + 1))[: submit.params.max_tokens])


@dataclass
class FakeScheduler:
    """Keeps what it was told, for tests to look at."""

    script: Callable[[pb.Submit], Script] = echo
    max_model_len: int = 2048
    vocab_size: int = 512
    max_cache_tokens: int = 1 << 20
    worker_ready: bool = True
    fingerprint: str | None = None
    reply_to_finish: bool = True
    port: int = 0
    hellos: list[pb.AttachHello] = field(default_factory=list)
    submits: list[pb.Submit] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    finishes: list[pb.Finish] = field(default_factory=list)
    playing: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    server: grpc.aio.Server | None = None
    outgoing: asyncio.Queue[pb.AttachResponse] = field(default_factory=asyncio.Queue)
    seed: int = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> FakeScheduler:
        """Listen; on the same port again after a stop."""
        self.server = grpc.aio.server(options=OPTIONS)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(_Servicer(self), self.server)
        for _ in range(100):
            try:
                self.port = self.server.add_insecure_port(self.address)
                break
            except RuntimeError:
                await asyncio.sleep(0.02)
        await self.server.start()
        return self

    async def kill(self) -> None:
        """Drop all connections and requests, as a crash would."""
        for task in list(self.playing.values()):
            task.cancel()
        self.playing.clear()
        if self.server is not None:
            await self.server.stop(0)
            self.server = None

    async def welcome(self) -> None:
        """Tell the attached replica the limits again."""
        await self.outgoing.put(pb.AttachResponse(welcome=self._welcome()))

    def _welcome(self) -> pb.AttachWelcome:
        return pb.AttachWelcome(
            incarnation="fake",
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            max_cache_tokens=self.max_cache_tokens,
            worker_ready=self.worker_ready,
        )

    async def attach(self, requests: AsyncIterator[pb.AttachRequest], context: Any) -> AsyncIterator[Any]:
        """One stream."""
        hello = (await anext(aiter(requests))).hello
        self.hellos.append(hello)
        if self.fingerprint is not None and hello.model_fingerprint != self.fingerprint:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "model fingerprints differ")
        self.outgoing = asyncio.Queue()
        await self.outgoing.put(pb.AttachResponse(welcome=self._welcome()))
        listener = asyncio.create_task(self._listen(requests))
        try:
            while True:
                yield await self.outgoing.get()
        finally:
            listener.cancel()
            for task in list(self.playing.values()):
                task.cancel()
            self.playing.clear()

    async def _listen(self, requests: AsyncIterator[pb.AttachRequest]) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "submit":
                    self.submits.append(request.submit)
                    task = asyncio.create_task(self._play(request.submit))
                    self.playing[request.submit.stream_id] = task
                case "cancel":
                    self.cancels.append(request.cancel.stream_id)
                    self._end(request.cancel.stream_id)
                case "finish":
                    self.finishes.append(request.finish)
                    self._end(request.finish.stream_id)
                    if self.reply_to_finish:
                        await self._send(finished=[self._done(request.finish.stream_id, STOP)])

    def _end(self, stream_id: int) -> None:
        task = self.playing.pop(stream_id, None)
        if task is not None:
            task.cancel()

    async def _send(self, **fields: Any) -> None:
        await self.outgoing.put(pb.AttachResponse(outputs=pb.Outputs(**fields)))

    @staticmethod
    def _done(stream_id: int, reason: Any, stop_id: int | None = None) -> pb.FinishedChoice:
        account = pb.ChoiceAccount(
            cached_tokens=3, queue_us=1000, prefill_us=2000, decode_us=3000, preemptions=1
        )
        done = pb.FinishedChoice(stream_id=stream_id, reason=reason, account=account)
        if stop_id is not None:
            done.stop_token_id = stop_id
        return done

    async def _play(self, submit: pb.Submit) -> None:
        stream_id, params = submit.stream_id, submit.params
        script = self.script(submit)
        rng = random.Random(self.seed * 1_000_003 + stream_id)
        with contextlib.suppress(asyncio.CancelledError):
            for message in script.raw:
                await self.outgoing.put(pb.AttachResponse(outputs=message))
            if script.raw:
                return
            if script.failure is not None:
                failed = pb.FailedRequest(stream_id=stream_id, failure=script.failure)
                self.playing.pop(stream_id, None)
                await self._send(failed=[failed])
                return
            ids, reason, stop_id = _cut(script.ids, params)
            position = len(submit.prior[0].token_ids) if submit.prior else 0
            if params.HasField("prompt_logprobs") and script.scores is not None:
                prompt = _scores(script, 1, len(submit.prompt_token_ids) - 1, params.prompt_logprobs)
                await self._send(scores=[pb.OutputScores(stream_id=stream_id, scores=prompt)])
            while position < len(ids):
                await asyncio.sleep(script.delay_s * rng.random())
                if script.hang_after is not None and position >= script.hang_after:
                    await asyncio.Event().wait()
                row = list(ids[position : position + script.step])
                fields: dict[str, Any] = {
                    "stream_ids": [stream_id], "offsets": [position], "counts": [len(row)], "token_ids": row
                }  # fmt: skip
                if params.HasField("logprobs") and script.scores is not None:
                    at = len(submit.prompt_token_ids) + position
                    scores = _scores(script, at, len(row), params.logprobs)
                    fields["scores"] = [pb.OutputScores(stream_id=stream_id, scores=scores)]
                position += len(row)
                if position >= len(ids):
                    self.playing.pop(stream_id, None)
                    fields["finished"] = [self._done(stream_id, reason, stop_id)]
                await self._send(**fields)
            if not ids:
                if script.hang_after is not None:
                    await asyncio.Event().wait()
                self.playing.pop(stream_id, None)
                await self._send(finished=[self._done(stream_id, reason, stop_id)])


def _cut(ids: Sequence[int], params: sequence_pb2.SequenceParams) -> tuple[Sequence[int], Any, int | None]:
    """Where a worker would stop."""
    for position, token_id in enumerate(ids[: params.max_tokens]):
        if token_id in params.stop_token_ids and position >= params.min_tokens:
            return ids[: position + 1], STOP, token_id
    return ids[: params.max_tokens], LENGTH, None


def _scores(script: Script, position: int, count: int, width: int) -> sequence_pb2.Scores:
    scores = sequence_pb2.Scores(position=position, width=width)
    assert script.scores is not None
    for at in range(position, position + count):
        logprob, rank, rivals = script.scores(at, width)
        scores.logprobs.append(logprob)
        scores.ranks.append(rank)
        scores.top_token_ids.extend(token_id for token_id, _ in rivals[:width])
        scores.top_logprobs.extend(value for _, value in rivals[:width])
    return scores


class _Servicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    def __init__(self, fake: FakeScheduler) -> None:
        self._fake = fake

    async def Attach(self, request_iterator: Any, context: Any) -> Any:
        """See the contract."""
        async for message in self._fake.attach(request_iterator, context):
            yield message
