"""The way to one worker: wait for it, shake hands, carry plans and results, notice its end, come back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Literal, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.internal.v1 import worker_pb2, worker_pb2_grpc
from hundredfold.rpc import PROTOCOL_VERSION, open_channel
from hundredfold.telemetry import get_logger
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.engine import Engine
from hundredfold_scheduler.settings import SchedulerSettings
from hundredfold_scheduler.worker_limits import WorkerRefused

log = get_logger(__name__)

Level = Literal["info", "warning", "error"]

_ANSWER_S = 5.0
_FIRST_WAIT_S, _MOST_WAIT_S = 0.1, 1.0
_START_S = 10.0
"""Services that are started together reach each other within so long; before that nothing is wrong."""
_PROBE_S = 2.0
_LIVENESS = "liveness"
_NO_ANSWER = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)


class WorkerLost(Exception):
    """There is no stream to the worker, or it has ended."""


class WorkerHall(Protocol):
    """What a link has to ask or tell whoever keeps all links."""

    def check(self, address: str, info: worker_pb2.GetWorkerInfoResponse) -> WorkerLimits:
        """The limits to plan with. Raises ``WorkerRefused``."""

    def connected(self, address: str, incarnation: str) -> None:
        """The worker takes plans."""

    def away(self, address: str, reason: str) -> None:
        """There is no worker, and why."""


class WorkerLink:
    """Keeps the worker at one address connected to the engine."""

    def __init__(
        self, address: str, settings: SchedulerSettings, engine: Engine, hall: WorkerHall, incarnation: str
    ) -> None:
        self.address = address
        self._engine = engine
        self._hall = hall
        self._incarnation = incarnation
        """This scheduler's."""
        self._max_message_bytes = settings.max_message_bytes
        self._silence_s = settings.worker_silence_s
        self._explained: tuple[str, Level] | None = None
        self._expected_by = time.monotonic() + _START_S
        self._last = False

    async def run(self) -> None:
        """Connect, and connect again whenever the worker is gone. Ends by cancellation or after ``leave``."""
        wait_s = _FIRST_WAIT_S
        while not self._last:
            try:
                # A new channel each time, without the last one's backoff.
                async with open_channel(self.address, self._max_message_bytes) as channel:
                    wait_s = await self._session(channel, wait_s)
            except WorkerRefused as refusal:
                self._explain(f"the worker is refused: {refusal}", "error")
            except WorkerLost as lost:
                self._explain(str(lost), "warning")
            except grpc.aio.AioRpcError as error:
                level: Level = "info" if time.monotonic() < self._expected_by else "warning"
                self._explain(f"{error.code().name}: {error.details()}", level)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _MOST_WAIT_S)

    def leave(self) -> None:
        """The address is not listed any more: a session that runs is the last one."""
        self._last = True

    def stay(self) -> None:
        """The address is listed again."""
        self._last = False

    async def _session(self, channel: grpc.aio.Channel, wait_s: float) -> float:
        """Wait for the worker to be ready, then serve it until it is gone; returns how long to wait then."""
        stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        info: worker_pb2.GetWorkerInfoResponse = await stub.GetWorkerInfo(
            worker_pb2.GetWorkerInfoRequest(), timeout=_ANSWER_S
        )
        if not info.ready:
            self._explain("the worker loads its model", "info")
            return wait_s
        limits = self._hall.check(self.address, info)
        call = stub.Execute()
        try:
            await self._shake_hands(call, info)
            await self._serve(channel, call, limits, info.incarnation)
        finally:
            call.cancel()
        return _FIRST_WAIT_S

    async def _shake_hands(self, call: Any, info: worker_pb2.GetWorkerInfoResponse) -> None:
        hello = worker_pb2.ExecuteHello(
            protocol_version=PROTOCOL_VERSION,
            scheduler=self._incarnation,
            incarnation=info.incarnation,
            model_fingerprint=info.model_fingerprint,
            block_size=info.block_size,
        )
        try:
            async with asyncio.timeout(_ANSWER_S):
                await call.write(worker_pb2.ExecuteRequest(hello=hello))
                answer = await call.read()
        except TimeoutError:
            raise WorkerLost(f"the worker did not welcome us within {_ANSWER_S:g} s") from None
        if answer is grpc.aio.EOF:
            raise WorkerLost(await _ending(call))
        if not answer.HasField("welcome"):
            raise WorkerLost("the worker did not begin with a welcome")
        if answer.welcome.incarnation != info.incarnation:
            raise WorkerLost("the worker was restarted during the handshake")

    async def _serve(
        self, channel: grpc.aio.Channel, call: Any, limits: WorkerLimits, incarnation: str
    ) -> None:
        """Carry plans and results until the stream ends or the engine gives it up."""
        stream = ExecuteStream(call)
        log.info("worker connected", worker=self.address, blocks=limits.num_blocks)
        self._explained, self._expected_by = None, 0.0
        self._engine.worker_connected(stream, self.address, limits)
        self._hall.connected(self.address, incarnation)
        reader = asyncio.create_task(self._read(call, stream))
        writer = asyncio.create_task(stream.write())
        prober = asyncio.create_task(self._probe(channel, stream))
        try:
            # A broken stream ends all; the reader is the one that knows why.
            await asyncio.wait({reader, prober, stream.abandoned}, return_when=asyncio.FIRST_COMPLETED)
            if stream.abandoned.done():
                raise WorkerLost(stream.reason)
            await (reader if reader.done() else prober)
        finally:
            self._engine.worker_lost(stream)
            for task in (reader, writer, prober):
                task.cancel()
            await asyncio.gather(reader, writer, prober, return_exceptions=True)

    async def _read(self, call: Any, stream: ExecuteStream) -> None:
        while (answer := await call.read()) is not grpc.aio.EOF:
            if answer.HasField("leaving"):
                log.info("worker leaves", worker=self.address)
                self._engine.worker_leaving(stream)
            else:
                self._engine.worker_answered(stream, answer.result)
        raise WorkerLost(await _ending(call))

    async def _probe(self, channel: grpc.aio.Channel, stream: ExecuteStream) -> None:
        """Ask the worker's process now and then whether it lives. A stopped one keeps its connection."""
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=_LIVENESS)
        silent_s = 0.0
        while True:
            began = time.monotonic()
            try:
                answer = await stub.Check(request, timeout=_PROBE_S)
                alive = answer.status == health_pb2.HealthCheckResponse.SERVING
            except grpc.aio.AioRpcError as error:
                alive = error.code() not in _NO_ANSWER
            # Counted in probes, not by the clock: a pause of our own is no silence of the worker's.
            silent_s = 0.0 if alive else silent_s + _PROBE_S
            self._engine.worker_heard(stream, answers=alive)
            if silent_s >= self._silence_s:
                raise WorkerLost(f"the worker's process has not answered for {self._silence_s:g} s")
            await asyncio.sleep(_PROBE_S - min(_PROBE_S, time.monotonic() - began))

    def _explain(self, reason: str, level: Level) -> None:
        """Say why there is no worker, once per reason and level."""
        if (reason, level) != self._explained:
            self._explained = (reason, level)
            getattr(log, level)("no worker", worker=self.address, reason=reason)
        self._hall.away(self.address, reason)


class ExecuteStream:
    """The engine's end of one stream. A worker that reads nothing holds up the writer, never the engine."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._plans: deque[worker_pb2.ExecuteRequest] = deque()
        """As many as may be in flight."""
        self._something = asyncio.Event()
        self.abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason = ""
        """Why it was abandoned."""

    def send(self, message: worker_pb2.ExecuteRequest) -> None:
        """See ``engine.WorkerStream``."""
        self._plans.append(message)
        self._something.set()

    def abandon(self, reason: str) -> None:
        """See ``engine.WorkerStream``."""
        if not self.abandoned.done():
            self.reason = reason
            self.abandoned.set_result(None)

    async def write(self) -> None:
        """Send plans until the stream breaks."""
        while True:
            while self._plans:
                try:
                    await self._call.write(self._plans.popleft())
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return
            self._something.clear()
            await self._something.wait()


async def _ending(call: Any) -> str:
    code, details = await call.code(), await call.details()
    return f"the worker ended the stream: {code.name} {details}".rstrip()
