"""A scheduler service in this process before several fake workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hundredfold_scheduler.service import SchedulerService
from hundredfold_scheduler.settings import SchedulerSettings
from support.eventually import eventually
from support.grpc_worker import GrpcWorker
from support.replica import Replica


@dataclass
class Fleet:
    """The service and the workers that it was told of."""

    service: SchedulerService
    workers: Sequence[GrpcWorker]

    async def replica(self, name: str = "replica") -> Replica:
        """A replica, attached."""
        return await Replica.attach(self.service.host.addresses[0], name)

    @property
    def connected(self) -> set[str]:
        """Addresses of the workers that are connected."""
        return set(self.service.core.state.workers)

    async def wait_connected(self, *workers: GrpcWorker) -> None:
        """Until exactly these are."""
        await eventually(lambda: self.connected == {worker.address for worker in workers})

    async def wait_idle(self) -> None:
        """Until no request is left, then count everything."""
        await eventually(lambda: self.service.core.idle)
        self.service.core.check_integrity()
        assert not self.service.core.state.requests


@asynccontextmanager
async def scheduler_fleet(
    workers: Sequence[GrpcWorker], *, listed: Sequence[str] = (), **settings: object
) -> AsyncIterator[Fleet]:
    """All up, those connected that can be; the scheduler is told of ``listed``, or of each by its address."""
    addresses = [await worker.start() for worker in workers]
    told = {"listen": ("127.0.0.1:0",), "worker": tuple(listed or addresses), **settings}
    service = SchedulerService(SchedulerSettings.model_validate(told))
    running = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(30):
            await service.host.started.wait()
        await eventually(lambda: service.engine.worker_ready)
        yield Fleet(service, workers)
        for worker in workers:
            assert worker.violations == []
    finally:
        service.host.request_stop(grace_s=0.0)
        async with asyncio.timeout(30):
            await asyncio.gather(running, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in workers))
