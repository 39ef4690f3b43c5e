"""Follows the doors' health, and says whether the gateway can take requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hundredfold.rpc import open_channel

_SERVICE = "readiness"
_AGAIN_S = 1.0
_MAX_MESSAGE_BYTES = 1024 * 1024


class DoorWatch:
    """Ready with the first door that is, and until none has been for ``grace_s``: requests wait meanwhile.

    Args:
        doors: Their addresses.
        grace_s: Seconds.
        tell: Called with what changed: ready or not, and why not.
    """

    def __init__(self, doors: Sequence[str], grace_s: float, tell: Callable[[bool, str], None]) -> None:
        self._serving = dict.fromkeys(doors, False)
        self._grace_s = grace_s
        self._tell = tell
        self._losing: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Follow the doors for as long as the block runs."""
        self._tell(False, self._reason())
        tasks = [asyncio.create_task(self._watch(door)) for door in self._serving]
        try:
            yield
        finally:
            if self._losing is not None:
                self._losing.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, door: str) -> None:
        request = health_pb2.HealthCheckRequest(service=_SERVICE)
        async with open_channel(door, _MAX_MESSAGE_BYTES) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch  # type: ignore[attr-defined]  # made at run time
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async for reply in watch(request):
                        self._note(door, reply.status == health_pb2.HealthCheckResponse.SERVING)
                self._note(door, False)
                await asyncio.sleep(_AGAIN_S)

    def _note(self, door: str, serving: bool) -> None:
        before, self._serving[door] = any(self._serving.values()), serving
        now = any(self._serving.values())
        if now and self._losing is not None:
            self._losing.cancel()
            self._losing = None
        elif now and not before:
            self._tell(True, "")
        elif before and not now:
            self._losing = asyncio.get_running_loop().call_later(self._grace_s, self._lost)

    def _lost(self) -> None:
        self._losing = None
        self._tell(False, self._reason())

    def _reason(self) -> str:
        return f"no door is ready: {', '.join(self._serving)}"
