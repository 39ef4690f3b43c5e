"""Health as grpc.health.v1 tells it: readiness for "" and every service, liveness from the heartbeats."""

from __future__ import annotations

from collections.abc import Iterable

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as health_aio

from hundredfold.rpc.liveness import Heartbeat

LIVENESS = "liveness"
READINESS = "readiness"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class HealthBoard:
    """Publishes two facts, ready and alive, under all the names that probes ask for."""

    def __init__(self, services: Iterable[str]) -> None:
        self.servicer = health_aio.HealthServicer()
        self._ready_names = ("", READINESS, *services)
        self._published: dict[str, bool] = {}

    async def publish(self, *, ready: bool, alive: bool) -> None:
        """Tell watchers what changed."""
        for name, value in [*((n, ready) for n in self._ready_names), (LIVENESS, alive)]:
            if self._published.get(name) is not value:
                self._published[name] = value
                await self.servicer.set(name, _SERVING if value else _NOT_SERVING)


def stalled(heartbeats: Iterable[Heartbeat]) -> list[tuple[str, float]]:
    """Name and silence in seconds of every loop that has stopped."""
    found = ((beat.name, beat.stalled_s()) for beat in heartbeats)
    return [(name, silent) for name, silent in found if silent is not None]
