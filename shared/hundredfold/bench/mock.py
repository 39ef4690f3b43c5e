"""A mock door of known speed, to prove the load tool against: real gRPC, no model, an exact schedule.

Every request gets its first token after `first_token_s` and an event with `tokens_per_event` ids each
`event_interval_s` from then on, on absolute times, so nothing drifts. What a correct tool has to report:
TTFT = first_token_s, ITL = event_interval_s, TPOT = event_interval_s / tokens_per_event.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import grpc

from hundredfold.v1 import control_pb2_grpc, generation_pb2_grpc, tokenizer_pb2_grpc
from hundredfold.v1.control_pb2 import GetServerInfoRequest, GetServerInfoResponse
from hundredfold.v1.generation_pb2 import (
    FINISH_REASON_LENGTH,
    Delta,
    Finished,
    GenerateRequest,
    GenerateResponse,
    Started,
    Timings,
    Usage,
)
from hundredfold.v1.tokenizer_pb2 import EncodeRequest, EncodeResponse

PEAK_BYTES = {"tokenizer": 100 * 2**20, "scheduler": 60 * 2**20, "worker": 900 * 2**20}
"""The memory that the mock claims for each service."""


@dataclass(frozen=True, slots=True)
class MockSpeed:
    """How fast the mock answers, and how it misbehaves."""

    first_token_s: float = 0.1
    event_interval_s: float = 0.02
    tokens_per_event: int = 1
    fail_every: int = 0
    """Every k-th request is refused RESOURCE_EXHAUSTED; 0 refuses none."""
    break_every: int = 0
    """Every k-th request's stream ends OK halfway, without a finished event; 0 none."""
    overcount: int = 0
    """How many tokens the usage claims beyond those delivered."""
    cached_tokens: int = 0
    """Prompt tokens that the usage calls cached."""
    max_model_len: int = 8192
    max_beam_width: int = 8
    """Wider beams are refused UNIMPLEMENTED."""


class MockDoor(
    generation_pb2_grpc.GenerationServiceServicer,
    tokenizer_pb2_grpc.TokenizerServiceServicer,
    control_pb2_grpc.ControlServiceServicer,
):
    """The public services of the door, as far as the load tool uses them."""

    def __init__(self, speed: MockSpeed) -> None:
        """Answer at this speed."""
        self._speed = speed
        self._numbers: Iterator[int] = itertools.count(1)

    async def Generate(
        self, request: GenerateRequest, context: grpc.aio.ServicerContext[GenerateRequest, GenerateResponse]
    ) -> AsyncIterator[GenerateResponse]:
        """Stream ids on schedule."""
        arrived, number, speed = time.monotonic(), next(self._numbers), self._speed
        if speed.fail_every and number % speed.fail_every == 0:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue of 0 requests is full (mock)")
        if request.sampling.beam_width > speed.max_beam_width:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "sampling.beam_width is not supported (mock)")
        if request.sampling.HasField("beam_width") and request.sampling.HasField("temperature"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "sampling.temperature with beams (mock)")
        prompt_tokens = len(request.token_ids.ids) or len(request.text.split())
        yield GenerateResponse(started=Started(request_id=str(number), prompt_tokens=prompt_tokens))
        total, sent, due = request.sampling.max_tokens, 0, arrived + speed.first_token_s
        while sent < total:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            count = min(speed.tokens_per_event, total - sent)
            yield GenerateResponse(delta=Delta(text=" a" * count, token_ids=[7] * count))
            sent += count
            due += speed.event_interval_s
            if speed.break_every and number % speed.break_every == 0 and 2 * sent >= total:
                return
        yield GenerateResponse(finished=self._finished(prompt_tokens, sent))

    async def Encode(
        self, request: EncodeRequest, context: grpc.aio.ServicerContext[EncodeRequest, EncodeResponse]
    ) -> EncodeResponse:
        """Give each word an id of its own."""
        return EncodeResponse(token_ids=range(100, 100 + len(re.findall(r"\S+", request.text))))

    async def GetServerInfo(
        self,
        request: GetServerInfoRequest,
        context: grpc.aio.ServicerContext[GetServerInfoRequest, GetServerInfoResponse],
    ) -> GetServerInfoResponse:
        """Claim three services."""
        response = GetServerInfoResponse()
        for name, peak in PEAK_BYTES.items():
            info = response.services.add(
                service=name, version="0.0.0", state="ready", peak_resident_bytes=peak
            )
            info.model.name, info.model.max_model_len = "mock", self._speed.max_model_len
            if name == "worker":
                info.runtime.device, info.runtime.dtype = "mock", "bf16"
                info.runtime.selections.add(subject="quantization", chosen="none")
                info.runtime.selections.add(subject="kv_cache", chosen="bf16")
                info.libraries["mock"] = "1.0"
        return response

    def _finished(self, prompt_tokens: int, sent: int) -> Finished:
        timings = Timings()
        timings.queue.FromMilliseconds(1)
        return Finished(
            reason=FINISH_REASON_LENGTH,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                completion_tokens=sent + self._speed.overcount,
                cached_tokens=min(self._speed.cached_tokens, prompt_tokens),
            ),
            timings=timings,
        )


async def start_mock(address: str, speed: MockSpeed) -> tuple[grpc.aio.Server, int]:
    """Start the mock in the running loop; return the server and its port (0 in `address` draws one)."""
    server = grpc.aio.server()
    door = MockDoor(speed)  # type: ignore[abstract]  # the base refuses the other methods UNIMPLEMENTED
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(door, server)
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(door, server)
    control_pb2_grpc.add_ControlServiceServicer_to_server(door, server)
    port = server.add_insecure_port(address)
    await server.start()
    return server, port


async def serve_mock(address: str, speed: MockSpeed) -> None:
    """Serve until SIGTERM or SIGINT, and print the address once it is bound."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    server, port = await start_mock(address, speed)
    print(f"{address.rpartition(':')[0]}:{port}", flush=True)
    await stop.wait()
    await server.stop(0)
