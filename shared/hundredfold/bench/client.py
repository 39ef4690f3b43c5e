"""One client process: sends requests through raw stubs and notes when what came back.

It shares its cores with the server that it measures, so it does next to nothing per event: one clock reading
and one look at the number of ids. Statistics are made afterwards, in the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from hundredfold.bench.arrivals import MonotonicClock, dispatch
from hundredfold.bench.prompts import PromptSource
from hundredfold.bench.report import RequestRecord
from hundredfold.rpc import open_channel
from hundredfold.v1.generation_pb2 import GenerateRequest, GenerateResponse
from hundredfold.v1.generation_pb2_grpc import GenerationServiceStub

if TYPE_CHECKING:
    from hundredfold.v1.generation_pb2_grpc import GenerationServiceAsyncStub

LAG_PROBE_S = 0.1
"""How often the event loop's punctuality is probed: each time takes a core from the server for a tenth of a
millisecond.
"""


@dataclass(frozen=True, slots=True)
class ClientSetup:
    """What every request of a run has in common."""

    address: str
    prompts: PromptSource
    temperature: float
    seed: int
    cache_salt: str
    """Keeps the run's prefixes apart from those of an earlier run with the same prompts."""
    timeout_s: float
    max_message_bytes: int
    beam_width: int | None = None


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """How hard one client process worked during a phase."""

    cpu_share: float
    """CPU time of the process by wall time; above 1 when its threads used several cores."""
    loop_share: float
    """CPU time of the event loop's thread by wall time; near 1 the loop can do no more."""
    loop_lag_p99_s: float
    """How late the event loop ran a timer, 99th percentile: the error of its time stamps."""


class LoadClient:
    """Sends the requests of one process; use within one running event loop."""

    def __init__(self, setup: ClientSetup) -> None:
        """Open the channel; nothing is sent yet."""
        self._setup = setup
        self._clock = MonotonicClock()
        self._channel = open_channel(setup.address, setup.max_message_bytes)
        stub: GenerationServiceAsyncStub = GenerationServiceStub(self._channel)  # type: ignore[assignment]
        self._generate = stub.Generate
        self.records: list[RequestRecord] = []

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def connect(self, timeout_s: float) -> None:
        """Wait for the connection. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._channel.channel_ready()

    def request(self, index: int, output_len: int, *, warmup: bool = False) -> GenerateRequest:
        """Return request number `index`, asking for exactly `output_len` tokens."""
        request = GenerateRequest(cache_salt=self._setup.cache_salt)
        sampling = request.sampling
        sampling.max_tokens = output_len
        sampling.ignore_eos = True
        if self._setup.beam_width is None:
            sampling.temperature = self._setup.temperature
            sampling.seed = (self._setup.seed + index) % 2**63
        else:
            sampling.beam_width = self._setup.beam_width
        self._setup.prompts.fill(request, index, warmup=warmup)
        return request

    async def closed_loop(
        self, first: Sequence[GenerateRequest], later: Iterator[int], output_len: int, *, warmup: bool = False
    ) -> None:
        """Send `first` at once and a further request, numbered by `later`, whenever one of them ends."""

        async def one_after_another(request: GenerateRequest) -> None:
            self.records.append(await self.send(request, self._clock.now()))
            for index in later:
                request = self.request(index, output_len, warmup=warmup)
                self.records.append(await self.send(request, self._clock.now()))

        async with asyncio.TaskGroup() as group:
            for request in first:
                group.create_task(one_after_another(request))

    async def open_loop(
        self, due: Iterable[tuple[GenerateRequest, float]], sent: Callable[[], object]
    ) -> None:
        """Send each request at its moment on the monotonic clock; `sent` is told of each."""

        async def send(request: GenerateRequest, moment: float) -> None:
            sent()
            self.records.append(await self.send(request, moment))

        await dispatch(due, self._clock, send)

    async def send(self, request: GenerateRequest, start: float) -> RequestRecord:
        """Send one request that was due at `start` and return what became of it."""
        now = time.monotonic
        times = array("d")
        first_event_tokens = received = 0
        finished: GenerateResponse | None = None
        error, detail = None, ""
        try:
            call = self._generate(request, timeout=self._setup.timeout_s)
            read: Callable[[], Awaitable[Any]] = call.read  # a response, or EOF
            while (event := await read()) is not grpc.aio.EOF:
                count = len(event.delta.token_ids)
                if count:
                    times.append(now())
                    received += count
                    first_event_tokens = first_event_tokens or count
                elif event.HasField("finished"):
                    finished = event
        except grpc.aio.AioRpcError as failure:
            error, detail = failure.code().name, failure.details() or ""
        if error is None and finished is None:
            error, detail = "INCOMPLETE", "the stream ended OK without a finished event"
        usage = finished.finished.usage if finished is not None else None
        timings = finished.finished.timings if finished is not None else None
        return RequestRecord(
            start=start,
            end=now(),
            event_times=np.frombuffer(times, dtype=np.float64) if times else np.empty(0),
            first_event_tokens=first_event_tokens,
            received_tokens=received,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            cached_tokens=usage.cached_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            queue_s=timings.queue.ToNanoseconds() / 1e9 if timings and timings.HasField("queue") else None,
            preemptions=timings.preemptions if timings else 0,
            error=error,
            detail=detail,
        )


async def measure_load(work: Awaitable[None]) -> ClientLoad:
    """Await `work` and return what it took of this process."""
    lags = array("d")
    probe = asyncio.get_running_loop().create_task(_probe(lags))
    wall, cpu, loop_cpu = time.monotonic(), time.process_time(), time.thread_time()
    try:
        await work
    finally:
        probe.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probe
    passed = max(time.monotonic() - wall, 1e-9)
    return ClientLoad(
        cpu_share=(time.process_time() - cpu) / passed,
        loop_share=(time.thread_time() - loop_cpu) / passed,
        loop_lag_p99_s=float(np.percentile(np.frombuffer(lags), 99)) if lags else 0.0,
    )


async def _probe(lags: array[float]) -> None:
    while True:
        due = time.monotonic() + LAG_PROBE_S
        await asyncio.sleep(LAG_PROBE_S)
        lags.append(max(0.0, time.monotonic() - due))
