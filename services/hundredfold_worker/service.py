"""The service as a whole: the host on a thread of its own, the device on the main one, and their end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

import grpc

from hundredfold.internal.v1 import worker_pb2_grpc
from hundredfold.plugin.registry import Registry
from hundredfold.rpc import RequestError, ServiceHost, keep_what_is_loaded, run_loop
from hundredfold.telemetry import LoadSample, get_logger
from hundredfold.v1 import control_pb2
from hundredfold_worker.device_loop import DeviceLoop
from hundredfold_worker.info import add_model, add_plugins
from hundredfold_worker.servicer import WorkerFacts, WorkerServicer
from hundredfold_worker.session import Inbox, Leave
from hundredfold_worker.settings import WorkerSettings
from hundredfold_worker.startup import Started

log = get_logger(__name__)

_STEP_LIMIT_S = 600.0
"""Longest that a step may take before the process counts as hung."""
_EXIT_FAILED = 1


class Interrupted(BaseException):
    """A stop was asked for while the model was loading."""


class WorkerService:
    """One worker. Is the host's ``ControlSource``."""

    def __init__(self, settings: WorkerSettings, registries: Mapping[str, Registry]) -> None:
        self._registries = registries
        self._started: Started | None = None
        self._inbox: Inbox = Inbox()
        self.host = ServiceHost("worker", settings, self, install_signals=False)
        self._servicer = WorkerServicer(self.host.facts.incarnation, self._inbox)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self._servicer, self.host.server)
        self._heartbeat = self.host.heartbeat("device", _STEP_LIMIT_S)
        self.host.metrics.watch_load(self._sample)
        self._exit_code = _EXIT_FAILED
        self._listening = threading.Event()
        self._ended = False
        self._interrupted = False
        self._thread = threading.Thread(target=self._host_thread, name="grpc")

    @property
    def host_ended(self) -> bool:
        """Whether nobody can be served any more."""
        return self._ended

    def open(self) -> bool:
        """Start answering, not ready yet; false when that failed."""
        self._thread.start()
        self._listening.wait()
        return not self.host_ended

    def serve(self, started: Started) -> None:
        """Compute plans on this thread until the host has ended. Raises what an engine cannot survive."""
        self._started = started
        keep_what_is_loaded()
        self._servicer.facts = WorkerFacts(
            started.loaded.fingerprint, started.engine.limits, started.bytes_per_block
        )
        self.host.set_ready(True)
        DeviceLoop(started.engine, self._inbox, self._heartbeat, self.host.metrics).run()

    def close(self, failure: str = "") -> int:
        """Stop the host if it still runs; returns the process's exit code."""
        if failure and not self.host_ended:
            self.host.fail(failure)
        self.host.request_stop()
        self._thread.join()
        return self._exit_code

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Hand signals to the host; before anything is served the first also ends what this thread does.

        A thread of its own tells the host: this one may wait in native code when a signal comes, and Python
        calls handlers here alone.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            if self._started is None and not self._interrupted:
                self._interrupted = True
                raise Interrupted

        numbers = (signal.SIGTERM, signal.SIGINT)
        told, heard = socket.socketpair()
        told.setblocking(False)
        threading.Thread(target=self._hear, args=(heard,), name="signals", daemon=True).start()
        wakeup = signal.set_wakeup_fd(told.fileno())
        before = [signal.signal(number, handle) for number in numbers]
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
            told.close()

    def _hear(self, heard: socket.socket) -> None:
        with heard:
            while number := heard.recv(1):
                self.host.on_signal(number[0])

    async def info(self) -> list[control_pb2.ServiceInfo]:
        """This worker; it stands on no other service."""
        info = self.host.service_info("torch", "numpy", "gguf", "safetensors")
        add_plugins(info, self._registries)
        if self._started is not None:
            add_model(info, self._started)
        return [info]

    async def load(self) -> control_pb2.GetLoadResponse:
        """Sequences it holds, and totals. Blocks are the scheduler's to count."""
        started = self._started
        if started is None:
            return control_pb2.GetLoadResponse()
        totals, times = started.engine.totals, started.engine.times
        return control_pb2.GetLoadResponse(
            running=started.engine.num_live,
            totals={
                "steps": totals.steps,
                "computed_tokens": totals.computed_tokens,
                "output_tokens": totals.output_tokens,
                "drafted_tokens": totals.drafted_tokens,
                "accepted_tokens": totals.accepted_tokens,
                "failed_sequences": totals.failed_sequences,
                "step_gap_us": round(1e6 * totals.gap_s),
                **{f"step_{part}_us": round(1e6 * seconds) for part, seconds in times.parts().items()},
            },
        )

    def running(self) -> int:
        """Sequences that a drain waits for."""
        return self._started.engine.num_live if self._started is not None else 0

    def _sample(self) -> LoadSample:
        return LoadSample(running=self.running())

    def _host_thread(self) -> None:
        try:
            self._exit_code = run_loop(self._run_host())
        except Exception:
            log.exception("the host has failed", service="worker")
        finally:
            self._ended = True
            self._listening.set()
            self._inbox.put(Leave())

    async def _run_host(self) -> int:
        tasks = [asyncio.create_task(self._tell_listening()), asyncio.create_task(self._end_stream())]
        try:
            return await self.host.run()
        finally:
            for task in tasks:
                task.cancel()

    async def _tell_listening(self) -> None:
        await self.host.started.wait()
        self._listening.set()

    async def _end_stream(self) -> None:
        """A drain begins by telling the scheduler, which brings nothing new then. Its stream would hold up
        the end: it is ended when nothing runs any more.
        """
        await self.host.stopping.wait()
        self._servicer.leave()
        await self.host.drained.wait()
        if self._servicer.session is not None:
            self._servicer.session.finish(
                RequestError(grpc.StatusCode.UNAVAILABLE, "the worker has drained and stops")
            )
