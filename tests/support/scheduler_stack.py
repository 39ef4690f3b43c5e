"""A scheduler service in this process, on a port of its own, before a fake worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hundredfold.v1 import control_pb2
from hundredfold_scheduler.service import SchedulerService
from hundredfold_scheduler.settings import SchedulerSettings
from support.eventually import eventually
from support.grpc_worker import GrpcWorker
from support.replica import Replica


@dataclass
class SchedulerStack:
    """The service, the worker behind it, and a way in."""

    service: SchedulerService
    worker: GrpcWorker

    @property
    def address(self) -> str:
        """Where the scheduler listens."""
        return self.service.host.addresses[0]

    async def replica(self, name: str = "replica") -> Replica:
        """A replica, attached."""
        return await Replica.attach(self.address, name)

    async def load(self) -> control_pb2.GetLoadResponse:
        """The scheduler's load."""
        return await self.service.load()

    async def wait_worker(self, timeout_s: float = 10) -> None:
        """Until a worker is connected."""
        await eventually(lambda: self.service.engine.worker_ready, timeout_s)

    async def wait_idle(self, timeout_s: float = 30) -> None:
        """Until no request is left, then count everything."""
        await eventually(lambda: self.service.core.idle, timeout_s)
        self.service.core.check_integrity()
        assert not self.service.core.state.requests
        assert (await self.load()).blocks.used == 0


@asynccontextmanager
async def scheduler_stack(
    worker: GrpcWorker | None = None, *, start_worker: bool = True, **settings: object
) -> AsyncIterator[SchedulerStack]:
    """Both up and connected, stopped at the end; the worker must have had nothing to complain of."""
    worker = worker or GrpcWorker()
    address = await worker.start()
    if not start_worker:
        await worker.stop()
    service = SchedulerService(
        SchedulerSettings.model_validate({"listen": ("127.0.0.1:0",), "worker": address, **settings})
    )
    running = asyncio.create_task(service.run())
    stack = SchedulerStack(service, worker)
    try:
        async with asyncio.timeout(30):
            await service.host.started.wait()
        if start_worker and worker.ready:
            await stack.wait_worker()
        yield stack
        assert worker.violations == []
    finally:
        service.host.request_stop(grace_s=0.0)
        async with asyncio.timeout(30):
            await asyncio.gather(running, return_exceptions=True)
        await worker.stop()
