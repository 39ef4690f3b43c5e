"""The life of a service's gRPC server: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from hundredfold.config import ServiceSettings
from hundredfold.config.address import UnixAddress, parse
from hundredfold.errors import StartError
from hundredfold.rpc.calls import CallBook, CallInterceptor
from hundredfold.rpc.control import ControlServicer, ControlSource
from hundredfold.rpc.facts import ProcessFacts
from hundredfold.rpc.health import HealthBoard, stalled
from hundredfold.rpc.listening import listen
from hundredfold.rpc.liveness import Heartbeat
from hundredfold.rpc.options import server_options
from hundredfold.rpc.registrar import Registrar
from hundredfold.telemetry import get_logger
from hundredfold.telemetry.metrics import ServiceMetrics
from hundredfold.telemetry.tracing import configure_tracing
from hundredfold.v1 import control_pb2, control_pb2_grpc

log = get_logger(__name__)

EXIT_FAILED = 1
"""Exit code of a service that could not start or whose work failed."""

_TICK_S = 1.0
_DRAIN_POLL_S = 0.05
_LAST_WORDS_S = 0.2
_CANCEL_S = 5.0
_SAME_SIGNAL_S = 0.3
_BACKSTOP_RPCS = 1024


class ServiceHost:
    """One gRPC server with health, ControlService, reflection by flag, metrics port, drain and signals.

    Rooms add their servicers to ``server``, then await ``run``; other methods may be called from any thread.
    With ``install_signals=False`` it runs on any thread, and the main thread's handlers call ``on_signal``.
    ``listen`` is for rooms whose ``settings.listen`` is another protocol's.
    """

    def __init__(
        self,
        name: str,
        settings: ServiceSettings,
        control: ControlSource,
        *,
        install_signals: bool = True,
        listen: tuple[str, ...] | None = None,
        metrics: ServiceMetrics | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.server = Registrar()
        self.metrics = metrics or ServiceMetrics(name, settings)
        self._listen = settings.listen if listen is None else listen
        self.drained = asyncio.Event()
        """Set, on the host's loop, when nothing runs any more and before the server stops."""
        self.addresses: tuple[str, ...] = ()
        """What is listened on, ports filled in, once started."""
        self.started = asyncio.Event()
        """Set, on the host's loop, when calls are answered."""
        self.stopping = asyncio.Event()
        """Set, on the host's loop, when a stop was asked for."""
        self.facts = ProcessFacts()
        self._control = control
        self._install_signals = install_signals
        self._book = CallBook(settings.max_concurrent_rpcs)
        self._heartbeats: list[Heartbeat] = []
        self._ready = False
        self._was_ready = False
        self._reason = "starting"
        self._exit_code = 0
        self._grace_s = settings.drain_grace_s
        self._stop_asked = False
        self._signalled: float | None = None
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def draining(self) -> bool:
        """Whether a stop was asked for: nothing new is to be started."""
        return self._stop_asked

    @property
    def state(self) -> str:
        """As ``ServiceInfo.state``: starting, ready, degraded or draining."""
        if self._stop_asked:
            return "draining"
        if self._ready:
            return "ready"
        return "degraded" if self._was_ready else "starting"

    def service_info(self, *libraries: str) -> control_pb2.ServiceInfo:
        """This service as ``GetServerInfo`` shows it; the room adds model, runtime and plugins."""
        return self.facts.describe(self.name, self.state, self.settings.in_force(), libraries)

    def set_ready(self, ready: bool, reason: str = "") -> None:
        """Whether the service can take requests, as its probes shall see it; ``reason`` says why not."""
        if (ready, reason) != (self._ready, self._reason):
            self._ready, self._reason = ready, reason
            self._was_ready = self._was_ready or ready
            log.info("ready" if ready else "not ready", service=self.name, reason=reason)
            self._wake(self._changed)

    def heartbeat(self, name: str, limit_s: float) -> Heartbeat:
        """A sign of life for one of the room's loops: liveness fails when it is silent for ``limit_s``."""
        beat = Heartbeat(name, limit_s)
        self._heartbeats.append(beat)
        return beat

    def request_stop(self, grace_s: float | None = None) -> None:
        """Drain, then stop; running requests get ``grace_s`` seconds, the configured grace when ``None``.

        What still runs then ends UNAVAILABLE with a retry hint, so that its client resumes it elsewhere.
        """
        if grace_s is not None:
            self._grace_s = grace_s
        self._stop_asked = True
        self._wake(self.stopping)

    def fail(self, reason: str) -> None:
        """Something that the service cannot live without is gone: stop at once, with a non-zero exit code."""
        log.error("service failed", service=self.name, reason=reason)
        self._exit_code = EXIT_FAILED
        self.request_stop(grace_s=0.0)

    def on_signal(self, number: int) -> None:
        """First signal: drain. Second: leave at once.

        A repetition within 0.3 s is the same one: a terminal and a supervisor both tell the process.
        """
        now = time.monotonic()
        if self._signalled is None:
            self._signalled = now
        elif now - self._signalled > _SAME_SIGNAL_S:
            os._exit(128 + number)
        if self._stop_asked:
            return
        log.info("stop asked for", service=self.name, signal=signal.Signals(number).name)
        self.request_stop()

    async def run(self) -> int:
        """Serve until a signal, ``Drain`` or ``request_stop``, then drain. Returns the process's exit code.

        A start that fails is logged with its reason and returns at once. Cancelling stops without a drain.
        """
        self._loop = asyncio.get_running_loop()
        shutdown_tracing = configure_tracing(self.settings, self.name)
        try:
            with self._signals(), self.metrics.serve():
                return await self._serve()
        except StartError as error:
            log.error("cannot start", service=self.name, reason=str(error))
            return EXIT_FAILED
        finally:
            self._loop = None
            shutdown_tracing()

    async def _serve(self) -> int:
        server = grpc.aio.server(
            interceptors=[CallInterceptor(self._book)],
            options=server_options(self.settings.max_message_bytes),
            # The interceptor holds the real limit, health checks aside; this stops what comes before it.
            maximum_concurrent_rpcs=self.settings.max_concurrent_rpcs + _BACKSTOP_RPCS,
        )
        board = HealthBoard(self._add_services(server))
        health_pb2_grpc.add_HealthServicer_to_server(board.servicer, server)
        watch = asyncio.create_task(self._watch(board))
        try:
            for address in self._listen:
                self.addresses = (*self.addresses, listen(server, address))
            await board.publish(ready=self._ready and not self._stop_asked, alive=True)
            if self._stop_asked:
                self.stopping.set()
            await server.start()
            log.info("listening", service=self.name, addresses=",".join(self.addresses))
            self.started.set()
            await self.stopping.wait()
            await board.publish(ready=False, alive=True)
            self._book.draining = True
            if await self._drain():
                self.drained.set()
            else:
                self._book.cut()
            await server.stop(_LAST_WORDS_S)
        finally:
            watch.cancel()
            await self._close(server)
        log.info("stopped", service=self.name, exit_code=self._exit_code)
        return self._exit_code

    def _add_services(self, server: grpc.aio.Server) -> tuple[str, ...]:
        servicer = ControlServicer(self._control, self.request_stop)
        control_pb2_grpc.add_ControlServiceServicer_to_server(servicer, self.server)
        names = self.server.service_names
        self.server.move_to(server)
        if self.settings.reflection:
            reflection.enable_server_reflection(
                (*names, "grpc.health.v1.Health", reflection.SERVICE_NAME), server
            )
        return names

    async def _drain(self) -> bool:
        """Wait until nothing runs in the room and no finite call is open. False when the grace ends."""
        deadline = time.monotonic() + self._grace_s
        log.info("draining", service=self.name, running=self._control.running(), grace_s=self._grace_s)
        while self._control.running() > 0 or self._book.tasks:
            left = deadline - time.monotonic()
            if left <= 0:
                log.warning(
                    "grace is over, the rest is cancelled", service=self.name, calls=self._book.active
                )
                return False
            self._book.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._book.changed.wait(), min(left, _DRAIN_POLL_S))
            deadline = min(
                deadline, time.monotonic() + self._grace_s
            )  # a later stop may be in more of a hurry
        return True

    async def _close(self, server: grpc.aio.Server) -> None:
        try:
            await asyncio.wait_for(server.stop(None), _CANCEL_S)
        except TimeoutError:
            # A handler that swallows its cancellation must not keep the process alive.
            log.error("calls did not end when cancelled", service=self.name, calls=self._book.active)
        for address in self._listen:
            parsed = parse(address)
            if isinstance(parsed, UnixAddress) and address in self.addresses:
                parsed.path.unlink(missing_ok=True)

    async def _watch(self, board: HealthBoard) -> None:
        """Keep health true: at once when readiness changes, and by the tick for loops that fell silent."""
        known: set[str] = set()
        while True:
            self._changed.clear()
            silent = stalled(self._heartbeats)
            for name, seconds in silent:
                if name not in known:
                    log.error("a loop makes no progress", service=self.name, loop=name, silent_s=seconds)
            known = {name for name, _ in silent}
            await board.publish(ready=self._ready and not self._stop_asked, alive=not silent)
            began = time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _TICK_S)
            late = time.monotonic() - began - _TICK_S
            if late > _TICK_S:
                # Probes got no answer meanwhile: whoever reads the log has to find out why.
                log.warning("the event loop was blocked", service=self.name, blocked_s=late)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if not self._install_signals:
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self.on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _wake(self, event: asyncio.Event) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop closed meanwhile
                loop.call_soon_threadsafe(event.set)
