"""A fake door with real gRPC: answers every prompt with the same words, refuses and breaks off on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from hundredfold.rpc import RequestError, abort
from hundredfold.rpc.options import server_options
from hundredfold.v1 import (
    control_pb2,
    control_pb2_grpc,
    generation_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)
from hundredfold.v1 import generation_pb2 as pb

WORDS = ("der", " 😀", " Zug", " é", " is", "t", " 北京", " da", "\n", " gone")
MIB = 1024 * 1024


_CYCLE = "".join(WORDS)
_CHARS = [len("".join(WORDS[:position])) for position in range(len(WORDS))]


def expected_chars(count: int) -> int:
    """Length of ``expected_text``."""
    return count // len(WORDS) * len(_CYCLE) + _CHARS[count % len(WORDS)]


def expected_ids(count: int, seed: int) -> list[int]:
    return [1000 * (seed % 1000) + position for position in range(count)]


def expected_text(count: int) -> str:
    return _CYCLE * (count // len(WORDS)) + "".join(WORDS[: count % len(WORDS)])


@dataclass
class FakeDoor(
    generation_pb2_grpc.GenerationServiceServicer,
    tokenizer_pb2_grpc.TokenizerServiceServicer,
    control_pb2_grpc.ControlServiceServicer,
):
    """Answers every prompt with the same words; ids depend on the seed; text runs one token behind."""

    model: str = "fake"
    step_s: float = 0.005
    draws: int = 700
    """The seed that the next request without one gets."""
    refusals: list[RequestError] = field(default_factory=list)
    """What the next Generate calls are answered with, before they start."""
    drop_after: list[int] = field(default_factory=list)
    """After how many deltas the next streams end without a finished event."""
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    """The ``traceparent`` of each, empty for none."""
    calls: Counter[str] = field(default_factory=Counter)
    failing: RequestError | None = None
    """What running streams end with."""
    sent: int = 0
    """Deltas sent so far, of all streams."""
    server: grpc.aio.Server | None = None
    running: dict[str, asyncio.Event] = field(default_factory=dict)
    completed: int = 0
    port: int = 0

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        metadata = dict(context.invocation_metadata() or ())
        self.traces.append(str(metadata.get("traceparent", "")))
        if self.refusals:
            await abort(context, self.refusals.pop(0))
        request_id = request.request_id or f"drawn-{len(self.requests)}"
        if request_id in self.running:
            await abort(context, RequestError(grpc.StatusCode.ALREADY_EXISTS, "running", "request_id"))
        self.running[request_id] = aborted = asyncio.Event()
        try:
            async for response in self._answer(request, request_id):
                if aborted.is_set():
                    await abort(context, RequestError(grpc.StatusCode.CANCELLED, "aborted"))
                if self.failing is not None and response.HasField("delta"):
                    await abort(context, self.failing)
                yield response
                self.sent += response.HasField("delta")
            self.completed += 1
        finally:
            del self.running[request_id]

    async def _answer(
        self, request: pb.GenerateRequest, request_id: str
    ) -> AsyncIterator[pb.GenerateResponse]:
        sampling = pb.SamplingParams()
        sampling.CopyFrom(request.sampling)
        if not sampling.HasField("seed"):
            sampling.seed, self.draws = self.draws, self.draws + 1
        if not sampling.HasField("temperature"):
            sampling.temperature = 0.75
        count = sampling.max_tokens or 20
        started = pb.Started(request_id=request_id, model=self.model, prompt_tokens=3, sampling=sampling)
        yield pb.GenerateResponse(started=started)
        if sampling.HasField("prompt_logprobs"):
            yield pb.GenerateResponse(prompt_logprobs=pb.PromptLogprobs(tokens=[pb.TokenLogprobs()]))
        prior = {c.index: c for c in request.resume.choices}.get(0, pb.ReceivedChoice())
        ids, text = expected_ids(count, sampling.seed), expected_text(count)
        assert list(prior.token_ids) == ids[: len(prior.token_ids)]
        sent_chars, deltas = prior.num_chars, 0
        drop = self.drop_after.pop(0) if self.drop_after else None
        for position in range(len(prior.token_ids), count):
            if deltas == drop:
                return
            await asyncio.sleep(self.step_s)
            upto = expected_chars(position) if position + 1 < count else len(text)
            delta = pb.Delta(token_ids=[ids[position]], text=text[sent_chars:upto])
            if sampling.HasField("logprobs"):
                delta.logprobs.add(token=pb.TokenLogprob(token_id=ids[position], logprob=-0.5, rank=1))
            sent_chars, deltas = max(sent_chars, upto), deltas + 1
            yield pb.GenerateResponse(delta=delta)
        usage = pb.Usage(prompt_tokens=3, completion_tokens=count)
        finished = pb.Finished(reason=pb.FINISH_REASON_LENGTH, usage=usage)
        finished.timings.queue.FromMilliseconds(1)
        finished.timings.prefill.FromMilliseconds(20)
        finished.timings.decode.FromMilliseconds(500)
        yield pb.GenerateResponse(finished=finished)

    async def GenerateOnce(
        self, request: pb.GenerateOnceRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.GenerateOnceResponse:
        if self.refusals:
            await abort(context, self.refusals.pop(0))
        answer = pb.GenerateOnceResponse()
        choice = answer.choices.add()
        async for response in self._answer(request.request, "once"):
            if response.HasField("started"):
                answer.started.CopyFrom(response.started)
            elif response.HasField("delta"):
                choice.content.text += response.delta.text
                choice.content.token_ids.extend(response.delta.token_ids)
            elif response.HasField("finished"):
                choice.finished.CopyFrom(response.finished)
        return answer

    async def Abort(
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.AbortResponse:
        if request.request_id not in self.running:
            await abort(context, RequestError(grpc.StatusCode.NOT_FOUND, f"no request {request.request_id}"))
        self.running[request.request_id].set()
        return pb.AbortResponse()

    async def Encode(
        self, request: tokenizer_pb2.EncodeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tokenizer_pb2.EncodeResponse:
        self.calls["encode"] += 1
        if self.refusals:
            await abort(context, self.refusals.pop(0))
        special = [1] if request.add_special_tokens or not request.HasField("add_special_tokens") else []
        return tokenizer_pb2.EncodeResponse(token_ids=[*special, *request.text.encode()])

    async def Decode(
        self, request: tokenizer_pb2.DecodeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tokenizer_pb2.DecodeResponse:
        return tokenizer_pb2.DecodeResponse(text=bytes(request.token_ids).decode("utf-8", "replace"))

    async def RenderChat(
        self, request: tokenizer_pb2.RenderChatRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tokenizer_pb2.RenderChatResponse:
        text = "".join(f"<{m.role}>{m.content}" for m in request.chat.messages)
        return tokenizer_pb2.RenderChatResponse(text=text, token_ids=text.encode())

    async def CountTokens(
        self, request: tokenizer_pb2.CountTokensRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tokenizer_pb2.CountTokensResponse:
        text = request.text or "".join(m.content for m in request.chat.messages)
        return tokenizer_pb2.CountTokensResponse(count=len(text.split()), max_model_len=100)

    async def GetServerInfo(
        self, request: control_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.GetServerInfoResponse:
        model = control_pb2.ModelInfo(
            name=self.model, architecture="llama", max_model_len=100, vocab_size=500
        )
        door = control_pb2.ServiceInfo(service="tokenizer", version="0.1.0", state="ready", model=model)
        worker = control_pb2.ServiceInfo(service="worker", version="0.1.0", state="ready", model=model)
        worker.runtime.device, worker.runtime.dtype = "cpu", "float32"
        chosen = worker.runtime.selections.add(subject="attention", chosen="torch", reason="first that fits")
        chosen.refused.add(name="flash", reasons=["needs CUDA", "head size 12"])
        worker.plugins.add(
            group="hundredfold.kernels",
            name="bad",
            distribution="stranger 1.0",
            state="failed",
            error="ImportError: x",
        )
        worker.settings["max_num_seqs"] = "64"
        worker.resident_bytes = 300 * MIB
        return control_pb2.GetServerInfoResponse(services=[door, worker])

    async def GetLoad(
        self, request: control_pb2.GetLoadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.GetLoadResponse:
        return control_pb2.GetLoadResponse(running=len(self.running))

    async def Drain(
        self, request: control_pb2.DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.DrainResponse:
        self.calls[f"drain {request.grace.ToMilliseconds() if request.HasField('grace') else 'unset'}"] += 1
        return control_pb2.DrainResponse(running=len(self.running))

    async def stop(self) -> None:
        """Go away, with all streams."""
        if self.server is not None:
            await self.server.stop(0)

    async def idle(self) -> None:
        """Wait until no request runs."""
        async with asyncio.timeout(30):
            while self.running:  # noqa: ASYNC110  # calls come and go; there is no one event
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(door: FakeDoor) -> AsyncIterator[FakeDoor]:
    """Serve on a free port of the loopback."""
    server = grpc.aio.server(options=server_options(64 * MIB))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(door, server)
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(door, server)
    control_pb2_grpc.add_ControlServiceServicer_to_server(door, server)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("readiness", health_pb2.HealthCheckResponse.SERVING)
    door.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    door.server = server
    try:
        yield door
    finally:
        await server.stop(0)
