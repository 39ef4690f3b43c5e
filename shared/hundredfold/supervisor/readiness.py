"""Waiting until a service says that it is ready."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE = "readiness"
FIRST_POLL_S = 0.05
MAX_POLL_S = 0.5
_OPTIONS = [
    # A service that is just starting is looked for often; the usual pauses are for one that is away.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.enable_http_proxy", 0),
]


async def wait_ready(address: str) -> None:
    """Return when the health service at ``address`` says SERVING; ask now and then until it does."""
    pause = FIRST_POLL_S
    request = health_pb2.HealthCheckRequest(service=SERVICE)
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # made at run time
        while True:
            try:
                if (await check(request, timeout=2)).status == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.aio.AioRpcError:
                pass  # not there yet
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, MAX_POLL_S)
