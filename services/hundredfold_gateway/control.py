"""What the gateway says of itself to the control service."""

from __future__ import annotations

from collections.abc import Callable

from hundredfold.client import AsyncClient, RequestFailed
from hundredfold.v1 import control_pb2
from hundredfold_gateway.gate import Gate

_TIMEOUT_S = 5.0


class GatewayControl:
    """This service first, then what the door tells of itself and those behind it.

    Args:
        describe: This service.
        gate: Counts what is in progress.
        client: The client of the doors, once there is one.
    """

    def __init__(
        self,
        describe: Callable[[], control_pb2.ServiceInfo],
        gate: Gate,
        client: Callable[[], AsyncClient | None],
    ) -> None:
        self._describe = describe
        self._gate = gate
        self._client = client

    async def info(self) -> list[control_pb2.ServiceInfo]:
        """See ``ControlSource``."""
        client = self._client()
        try:
            behind = [] if client is None else await client.info(timeout=_TIMEOUT_S)
        except RequestFailed:
            behind = []
        return [self._describe(), *behind]

    async def load(self) -> control_pb2.GetLoadResponse:
        """See ``ControlSource``."""
        return control_pb2.GetLoadResponse(running=self._gate.running)

    def running(self) -> int:
        """See ``ControlSource``."""
        return self._gate.running
