"""Puts the gateway together: which part knows which, and in what order it starts and ends."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hundredfold.client import AsyncClient, RetryPolicy
from hundredfold.config.address import UnixAddress, parse
from hundredfold.rpc import ServiceHost, StartError
from hundredfold.rpc.listening import open_socket, socket_address
from hundredfold.telemetry import LoadSample, get_logger
from hundredfold_gateway.control import GatewayControl
from hundredfold_gateway.gate import Gate
from hundredfold_gateway.http.front import trace_metadata
from hundredfold_gateway.http.server import serving
from hundredfold_gateway.metrics import HttpMetrics
from hundredfold_gateway.readiness import DoorWatch
from hundredfold_gateway.settings import GatewaySettings
from hundredfold_gateway.web import make_app

log = get_logger(__name__)

EXIT_FAILED = 1


class GatewayService:
    """The gateway as a whole. Built on the event loop that it runs on.

    Args:
        settings: What it was told.
        install_signals: Whether it is stopped by the process's signals; else by ``host``.
    """

    def __init__(self, settings: GatewaySettings, *, install_signals: bool = True) -> None:
        self.addresses: tuple[str, ...] = ()
        """Where HTTP is answered, ports filled in, once started."""
        self._settings = settings
        self._metrics = HttpMetrics(settings)
        self._client: AsyncClient | None = None
        self.gate = Gate(settings.max_requests, lambda: self.host.draining)
        control = GatewayControl(
            lambda: self.host.service_info("starlette", "uvicorn"), self.gate, lambda: self._client
        )
        self.host = ServiceHost(
            "gateway",
            settings,
            control,
            install_signals=install_signals,
            listen=settings.control_listen,
            metrics=self._metrics.service,
        )
        self._metrics.service.watch_load(lambda: LoadSample(running=self.gate.running))

    async def run(self) -> int:
        """Serve until told to stop; the exit code."""
        settings = self._settings
        async with contextlib.AsyncExitStack() as held:
            try:
                sockets = [held.enter_context(open_socket(address)) for address in settings.listen]
            except StartError as error:
                log.error("cannot start", service="gateway", reason=str(error))
                return EXIT_FAILED
            for address in settings.listen:
                parsed = parse(address)
                if isinstance(parsed, UnixAddress):
                    held.callback(Path.unlink, parsed.path, missing_ok=True)
            self.addresses = tuple(map(socket_address, sockets))
            self._client = await held.enter_async_context(self._connect())
            app = make_app(self._client, self.gate, settings, self._metrics, self._health)
            watch = DoorWatch(settings.door, settings.recovery_grace_s, self.host.set_ready)
            await held.enter_async_context(watch.watching())
            await held.enter_async_context(serving(app, sockets, settings.max_connections, self.host.fail))
            held.callback(self.gate.cut.set)  # the grace is over: what still runs ends with an error event
            log.info("answering HTTP", service="gateway", addresses=",".join(self.addresses))
            return await self.host.run()

    def _connect(self) -> AsyncClient:
        grace_s = self._settings.recovery_grace_s
        return AsyncClient(
            ",".join(self._settings.door),
            retry=RetryPolicy(connect_s=grace_s, resume_s=grace_s),
            max_message_bytes=self._settings.max_message_bytes,
            metadata=trace_metadata,
        )

    def _health(self) -> tuple[bool, str]:
        state = self.host.state
        return state == "ready", "ok" if state == "ready" else state
