"""What ControlService says of the door and of the services behind it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import grpc.aio
import psutil
from google.protobuf.duration_pb2 import Duration

from hundredfold.v1 import control_pb2 as pb
from hundredfold.v1 import control_pb2_grpc
from hundredfold_tokenizer.output.unread import UnreadBudget
from hundredfold_tokenizer.requests.registry import Registry
from hundredfold_tokenizer.settings import TokenizerSettings

_LIBRARIES = ("grpcio", "protobuf", "tokenizers", "jinja2")
_BEHIND_S = 2.0


class DoorControl:
    """The door's own account of itself.

    Args:
        settings: What it was told.
        model: The model it serves; called anew each time, for its limits become known late.
        state: As ``ServiceInfo.state``.
        registry: Requests in progress.
        totals: Counts since the start.
        budget: Unread output.
        connect: Opens a channel to the scheduler.
    """

    def __init__(
        self,
        settings: TokenizerSettings,
        *,
        model: Callable[[], pb.ModelInfo],
        state: Callable[[], str],
        registry: Registry,
        totals: Callable[[], dict[str, int]],
        budget: UnreadBudget,
        connect: Callable[[], grpc.aio.Channel],
    ) -> None:
        self._settings = settings
        self._model = model
        self._state = state
        self._registry = registry
        self._totals = totals
        self._budget = budget
        self._connect = connect
        self._incarnation = secrets.token_hex(8)
        self._started = time.monotonic()

    async def info(self) -> list[pb.ServiceInfo]:
        """The door, then the scheduler and what is behind it, as far as they answer."""
        memory = psutil.Process().memory_info()
        own = pb.ServiceInfo(
            service="tokenizer",
            version=_version("hundredfold"),
            incarnation=self._incarnation,
            uptime=Duration(seconds=int(time.monotonic() - self._started)),
            state=self._state(),
            model=self._model(),
            settings=self._settings.in_force(),
            libraries={name: _version(name) for name in _LIBRARIES},
            resident_bytes=memory.rss,
            peak_resident_bytes=await asyncio.to_thread(_peak_bytes, memory.rss),
        )
        return [own, *await self._behind()]

    async def load(self) -> pb.GetLoadResponse:
        """Requests in progress and totals since the start."""
        return pb.GetLoadResponse(
            running=len(self._registry), totals={**self._totals(), "unread_bytes": self._budget.num_bytes}
        )

    def running(self) -> int:
        """Requests that a drain waits for."""
        return len(self._registry)

    async def _behind(self) -> list[pb.ServiceInfo]:
        async with self._connect() as channel:
            stub: Any = control_pb2_grpc.ControlServiceStub(channel)
            try:
                reply = await stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=_BEHIND_S)
            except grpc.aio.AioRpcError:
                return []
            return list(reply.services)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"


def _peak_bytes(resident: int) -> int:
    """Highest resident memory so far, where the system tells."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return resident
