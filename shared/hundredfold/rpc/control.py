"""ControlService, once for all services: what runs, how busy it is, and the request to stop."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from hundredfold.rpc.errors import RequestError
from hundredfold.v1 import control_pb2, control_pb2_grpc

_MAX_GRACE_S = 86400.0


class ControlSource(Protocol):
    """What a service says of itself."""

    async def info(self) -> list[control_pb2.ServiceInfo]:
        """This service first, then those behind it, as far as they answer."""

    async def load(self) -> control_pb2.GetLoadResponse:
        """How busy it is."""

    def running(self) -> int:
        """Requests that a drain has to wait for: running and queued ones."""


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """Answers from a ``ControlSource``; a drain is handed to the host."""

    def __init__(self, source: ControlSource, drain: Callable[[float | None], None]) -> None:
        self._source = source
        self._drain = drain

    async def GetServerInfo(
        self, request: control_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.GetServerInfoResponse:
        """See the contract."""
        return control_pb2.GetServerInfoResponse(services=await self._source.info())

    async def GetLoad(
        self, request: control_pb2.GetLoadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.GetLoadResponse:
        """See the contract."""
        return await self._source.load()

    async def Drain(
        self, request: control_pb2.DrainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> control_pb2.DrainResponse:
        """See the contract. From this machine only: whoever may ask for text may not stop the server."""
        if not _is_local_peer(context.peer()):
            raise RequestError(grpc.StatusCode.PERMISSION_DENIED, "Drain is answered to this machine only")
        grace_s: float | None = None
        if request.HasField("grace"):
            grace_s = request.grace.seconds + request.grace.nanos / 1e9
            if not 0 <= grace_s <= _MAX_GRACE_S:
                raise RequestError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"grace = {grace_s:g} s is not between 0 and {_MAX_GRACE_S:g} s",
                    field="grace",
                )
        self._drain(grace_s)
        return control_pb2.DrainResponse(running=self._source.running())


def _is_local_peer(peer: str) -> bool:
    kind, _, rest = peer.partition(":")
    if kind == "unix":
        return True
    host = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]").strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
