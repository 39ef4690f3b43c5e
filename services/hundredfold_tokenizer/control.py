"""What ControlService says of the door and of the services behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

from hundredfold.v1 import control_pb2 as pb
from hundredfold.v1 import control_pb2_grpc
from hundredfold_tokenizer.output.pacing import Pacer
from hundredfold_tokenizer.output.unread import UnreadBudget
from hundredfold_tokenizer.requests.registry import Registry

_BEHIND_S = 4.0
"""Longer than the scheduler waits for its workers: one that hangs must not take its account along."""


class DoorControl:
    """The door's own account of itself.

    Args:
        describe: The door; called anew each time, for the model's limits become known late.
        registry: Requests in progress.
        totals: Counts since the start.
        budget: Unread output.
        pacer: How long streams rest between messages.
        connect: Opens a channel to the scheduler.
        scheduler: Where that is.
    """

    def __init__(
        self,
        *,
        describe: Callable[[], pb.ServiceInfo],
        registry: Registry,
        totals: Callable[[], dict[str, int]],
        budget: UnreadBudget,
        pacer: Pacer,
        connect: Callable[[], grpc.aio.Channel],
        scheduler: str,
    ) -> None:
        self._describe = describe
        self._registry = registry
        self._totals = totals
        self._budget = budget
        self._pacer = pacer
        self._connect = connect
        self._scheduler = scheduler

    async def info(self) -> list[pb.ServiceInfo]:
        """The door, then the scheduler and what is behind it, as far as they answer."""
        return [self._describe(), *await self._behind()]

    async def load(self) -> pb.GetLoadResponse:
        """Requests in progress, totals since the start, and what is unread and how long tokens wait now."""
        now = {"unread_bytes": self._budget.num_bytes, "delta_delay_us": round(self._pacer.delay_s * 1e6)}
        return pb.GetLoadResponse(running=len(self._registry), totals={**self._totals(), **now})

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
        services = list(reply.services)
        for info in services[:1]:
            info.address = self._scheduler
        return services
