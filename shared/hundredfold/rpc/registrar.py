"""What rooms add their servicers to, before there is an event loop: remembers handlers and service names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import grpc
import grpc.aio


class Registrar(grpc.aio.Server):
    """Takes ``add_XServicer_to_server`` like a server; the host builds the real one from it when it runs."""

    def __init__(self) -> None:
        self._generic: list[grpc.GenericRpcHandler] = []
        self._methods: dict[str, dict[str, Any]] = {}
        self._sealed = False

    @property
    def service_names(self) -> tuple[str, ...]:
        """Full names of the services added so far."""
        return tuple(self._methods)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """As for a server. Raises ``RuntimeError`` once the host runs."""
        self._check()
        for handler in generic_rpc_handlers:
            self._generic.append(handler)
            if isinstance(handler, grpc.ServiceRpcHandler):
                self._methods.setdefault(str(handler.service_name()), {})

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """As for a server. Raises ``RuntimeError`` once the host runs."""
        self._check()
        self._methods.setdefault(service_name, {}).update(method_handlers)

    def move_to(self, server: grpc.aio.Server) -> None:
        """Give everything to the real server; nothing can be added afterwards."""
        self._check()
        self._sealed = True
        server.add_generic_rpc_handlers(tuple(self._generic))
        register = getattr(server, "add_registered_method_handlers", None)
        for name, handlers in self._methods.items():
            if register is not None and handlers:
                register(name, handlers)

    def _check(self) -> None:
        if self._sealed:
            raise RuntimeError("services are added before the host runs")

    def add_insecure_port(self, address: str) -> NoReturn:
        """The host opens the ports."""
        raise RuntimeError("the host opens the ports")

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> NoReturn:
        """The host opens the ports."""
        raise RuntimeError("the host opens the ports")

    async def start(self) -> NoReturn:
        """The host starts the server."""
        raise RuntimeError("the host starts the server: await host.run()")

    async def stop(self, grace: float | None) -> NoReturn:
        """The host stops the server."""
        raise RuntimeError("the host stops the server: host.request_stop()")

    async def wait_for_termination(self, timeout: float | None = None) -> NoReturn:  # noqa: ASYNC109 - inherited
        """The host waits."""
        raise RuntimeError("the host waits: await host.run()")
